"""Trainings over links of a rate and a delay, each measured once and kept (benchmarks/network)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from taugrad.platform.spec import RunSpec

from ..harness.trainings import Cells
from . import Link, Network, uniform
from .network_workers import found_by


@dataclass(frozen=True)
class Asked:
    """A training over a link."""

    spec: RunSpec
    half: str = ""
    """What its all-reduces are in, where it has any: `fp16` or `bf16`; empty: float32."""

    @property
    def key(self) -> str:
        """Of what is computed."""
        return self.spec.fingerprint() + self.half


def over(link: str, asked: Sequence[Asked], kept: Cells) -> list[dict[str, Any]]:
    """The trainings over a link; those that are not known are done."""
    return [kept.of({"link": link, "key": cell.key}, partial(over_link, link, cell)) for cell in asked]


def over_link(link: str, asked: Asked) -> dict[str, Any]:
    """A training by a host for each worker on one network, and what its probe found."""
    with Network(uniform(asked.spec.workers.count, Link.parse(link))) as network:
        probe = str(network.probe())
        results = found_by(network, "train", spec=asked.spec.model_dump_json(), half=asked.half)
    return {"line": asked.half or str(asked.spec.compressor), "probe": probe, **results}
