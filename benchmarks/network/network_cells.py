"""Trainings over links of a rate and a delay, each measured once and kept (benchmarks/network)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taugrad.platform.spec import RunSpec

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


class Cells:
    """What was measured over links, in a file with a line for each measurement."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {(each["link"], each["key"]): each for each in map(json.loads, lines)}

    def measure(self, link: str, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        """Trains what is not known over this link, and keeps it; what is known of all."""
        wanted = {each.key: each for each in asked}
        todo = [each for key, each in wanted.items() if (link, key) not in self._known]
        if todo:
            print(f"{link}, {len(todo)} trainings ...", flush=True)
            self._path.parent.mkdir(exist_ok=True)
        for each in todo:
            entry = {"link": link, "key": each.key, "line": each.half or str(each.spec.compressor)}
            entry |= over_link(link, each)
            self._known[link, each.key] = entry
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return [self._known[link, each.key] for each in asked]


def over_link(link: str, asked: Asked) -> dict[str, Any]:
    """A training by a host for each worker on one network, and what its probe found."""
    with Network(uniform(asked.spec.workers.count, Link.parse(link))) as network:
        probe = str(network.probe())
        found = found_by(network, "train", spec=asked.spec.model_dump_json(), half=asked.half)
    return {"probe": probe, **found}
