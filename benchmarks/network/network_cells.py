"""Trainings over links of a rate and a delay, each measured once and kept (benchmarks/network)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taugrad.platform.spec import RunSpec

from ..harness.report import environment, say
from ..harness.trainings import Kept, key_of
from ..harness.workers import run_workers
from . import Link, Network, uniform
from .network_train import train


@dataclass(frozen=True)
class Asked:
    """A training over a link."""

    spec: RunSpec
    half: str = ""
    """What its all-reduces are in, where it has any: `fp16` or `bf16`; empty: float32."""
    time: int = 1
    """The first time that it is measured, or a later one."""
    slept: float = 0.0
    """Seconds that worker 0 sleeps in each step, as if it computed as much longer."""

    @property
    def key(self) -> str:
        """The key of what is computed, however long worker 0 sleeps."""
        again = f" {self.time}" if self.time > 1 else ""
        return key_of(self.spec) + self.half + again + (" slowed" if self.slept else "")


AT_ONCE = 6
"""So many trainings are done on one network, by the same processes."""


def over(link: str, asked: Sequence[Asked], kept: Kept) -> list[dict[str, Any]]:
    """The trainings over a link; those that are not known are done, some at a time."""
    missing = [cell for cell in asked if kept.known(_of(link, cell)) is None]
    for first in range(0, len(missing), AT_ONCE):
        batch = missing[first : first + AT_ONCE]
        for cell, results in zip(batch, over_link(link, batch), strict=True):
            kept.add({**_of(link, cell), **results})
    return [kept.of(_of(link, cell), dict) for cell in asked]


def _of(link: str, cell: Asked) -> dict[str, Any]:
    return {"link": link, "key": cell.key}


def over_link(link: str, asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Trainings by a host for each worker on one network, and what its probe found."""
    (hosts,) = {cell.spec.workers.count for cell in asked}
    say(f"{len(asked)} trainings over {link}")
    trainings = [
        {"text": cell.spec.model_dump_json(), "half": cell.half, "slept": cell.slept} for cell in asked
    ]
    with Network(uniform(hosts, Link.parse(link))) as network:
        probe = str(network.probe())
        results = run_workers(train, trainings, hosts, network.hosts)
    said = {"probe": probe, "date": datetime.now().astimezone().date().isoformat(), "machine": environment()}
    lines = [{"line": cell.half or str(cell.spec.compressor), "slept": cell.slept} for cell in asked]
    return [{**line, **said, **result} for line, result in zip(lines, results, strict=True)]
