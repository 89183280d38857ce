"""Trainings that many benchmarks share: some at a time, each written down at once, none done twice."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from datetime import datetime
from multiprocessing import get_context, set_forkserver_preload
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from taugrad.platform.spec import RunSpec

from .report import say

TOGETHER = 2
"""Trainings at a time, each with a thread of its own."""
BUILD = Path(__file__).resolve().parents[2] / "build"
KEPT = Path(__file__).resolve().parents[1] / "kept"
"""What took hours: committed files, in which a benchmark goes on."""
Train = Callable[[str], dict[str, float]]
"""Trains a spec, as JSON, in a process of its own; a function of a module, not a closure."""


def kept_in(name: str, *, quick: bool) -> Path:
    """Where what a benchmark has done is written down; a quick run begins with nothing."""
    path = BUILD / f"{name}-quick.jsonl" if quick else BUILD / f"{name}.jsonl"
    if quick:
        path.unlink(missing_ok=True)
    return path


class Kept:
    """What is known, in a file with a line of JSON for each entry, such as a cell of a table.

    Attributes:
        entries: all of them, those of earlier starts first.
    """

    def __init__(self, path: Path) -> None:
        """Reads what is known; nothing where there is no file; see `kept_in`."""
        self._path = path
        whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n") if path.exists() else ("", "", "")
        if torn:  # the benchmark was killed while it wrote
            path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
        self.entries: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]

    def of(self, asked: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """An entry; where it is not known, it is measured, and kept with what was asked for."""
        entry = self.known(asked)
        if entry is None:
            say(", ".join(f"{name} {value}" for name, value in asked.items()))
            entry = {**asked, **measure()}
            self.add(entry)
        return entry

    def known(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """An entry, or None where it is not known yet."""
        return next((entry for entry in self.entries if entry.items() >= asked.items()), None)

    def add(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def key_of(spec: RunSpec) -> str:
    """The key of a spec, from the fields that it was given: new fields with a default do not change it."""
    return hashlib.sha256(spec.model_dump_json(exclude_unset=True).encode()).hexdigest()[:12]


class Trainings:
    """What trainings came to, by what was computed."""

    def __init__(
        self,
        path: Path,
        train: Train,
        work: Callable[[RunSpec], float],
        key: Callable[[RunSpec], str] = RunSpec.fingerprint,
    ) -> None:
        """Reads what is known; `train` does what is not, and `work` says about how long it takes."""
        self._kept, self._train, self._work, self._key = Kept(path), train, work, key
        self._known: dict[str, Mapping[str, float]] = {
            entry["fingerprint"]: {name: value for name, value in entry.items() if isinstance(value, float)}
            for entry in self._kept.entries
        }

    def known(self, spec: RunSpec) -> Mapping[str, float] | None:
        """A training, or None where it is not done yet."""
        return self._known.get(self._key(spec))

    def of(self, spec: RunSpec) -> Mapping[str, float]:
        """A training that is done."""
        return self._known[self._key(spec)]

    def train(self, specs: Sequence[RunSpec], every: int = 20) -> None:
        """Trains what is not done yet; the longest first, so that all processes end together."""
        todo = {key: spec for spec in specs if (key := self._key(spec)) not in self._known}
        if not todo:
            return
        ordered = sorted(todo.values(), key=lambda spec: -self._work(spec))
        set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "numba"])  # takes seconds
        with ProcessPoolExecutor(TOGETHER, get_context("forkserver"), initializer=begin) as pool:
            running: dict[Future[dict[str, float]], RunSpec] = {
                pool.submit(self._train, spec.model_dump_json()): spec for spec in ordered
            }
            for done, future in enumerate(as_completed(running), start=1):
                self.keep(running[future], future.result())
                if done % every == 0 or done == len(running):
                    say(f"  {done} of {len(running)} trainings")

    def keep(self, spec: RunSpec, results: Mapping[str, float]) -> None:
        """Writes down what a training came to."""
        key = self._key(spec)
        self._known[key] = results
        entry = {
            "fingerprint": key,
            **results,
            "model": spec.model.kind,
            "data": spec.data.kind,
            "seed": spec.seed,
            "compressor": str(spec.compressor),
            "date": datetime.now().astimezone().date().isoformat(),
        }
        self._kept.add(entry)


def begin() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
