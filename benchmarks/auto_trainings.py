"""Trainings for benchmarks/auto_threshold.py: two at a time, each written down at once, none done twice."""

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from sync_runs import train_here
from torch._C._distributed_c10d import HashStore

from taugrad.platform.spec import RunSpec

TOGETHER = 2
"""Trainings at a time, each with a thread of its own."""


@dataclass(frozen=True)
class Point:
    """What a training came to."""

    accuracy: float
    wire_bytes: float


class Trainings:
    """Outcomes by what was computed, in a file with a line for each."""

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, dict[str, Point]()
        if path.exists():
            whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n")
            if torn:  # the benchmark was killed while it wrote
                path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
            for line in whole.splitlines():
                entry = json.loads(line)
                self._known[entry["fingerprint"]] = Point(entry["accuracy"], entry["wire_bytes"])

    def known(self, spec: RunSpec) -> Point | None:
        """A training, or None where it is not done yet."""
        return self._known.get(spec.fingerprint())

    def of(self, spec: RunSpec) -> Point:
        """A training that is done."""
        return self._known[spec.fingerprint()]

    def train(self, specs: Sequence[RunSpec], say: Callable[[str], None]) -> None:
        """Trains what is not done yet; the longest first, so that both processes end together."""
        todo = {spec.fingerprint(): spec for spec in specs if spec.fingerprint() not in self._known}
        if not todo:
            return
        ordered = sorted(todo.values(), key=lambda spec: -_work(spec))
        with ProcessPoolExecutor(TOGETHER, get_context("spawn"), initializer=_begin) as pool:
            running: dict[Future[tuple[float, float]], RunSpec] = {
                pool.submit(_train, spec.model_dump_json()): spec for spec in ordered
            }
            for done, future in enumerate(as_completed(running), start=1):
                self._keep(running[future], Point(*future.result()))
                if done % 20 == 0 or done == len(running):
                    say(f"  {done} of {len(running)} trainings")

    def _keep(self, spec: RunSpec, point: Point) -> None:
        self._known[spec.fingerprint()] = point
        entry = {
            "fingerprint": spec.fingerprint(),
            "accuracy": point.accuracy,
            "wire_bytes": point.wire_bytes,
            "model": spec.model.kind,
            "data": spec.data.kind,
            "seed": spec.seed,
            "compressor": str(spec.compressor),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _work(spec: RunSpec) -> float:
    """About how long a training takes, next to others."""
    convolutions = 4 if spec.model.kind == "lenet" else 1
    pixels = 10 if spec.data.kind == "mnist5k" else 1
    return convolutions * pixels * spec.training.epochs


def _begin() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def _train(text: str) -> tuple[float, float]:
    outcome = train_here(RunSpec.model_validate_json(text))
    return outcome.accuracy, float(outcome.wire_bytes)
