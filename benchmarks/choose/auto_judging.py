"""How choose/auto_threshold.py compares sets of trainings: hypervolumes, and fronts."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import Following, fit
from ..harness.trainings import Trainings


@dataclass(frozen=True)
class Point:
    """What a training came to."""

    accuracy: float
    wire_bytes: float


def trainings_in(folder: Path) -> Trainings:
    """Those that are done, in a file of a folder."""
    return Trainings(folder / "trainings.jsonl", _train, _work)


def _work(spec: RunSpec) -> float:
    convolutions = 4 if spec.model.kind == "lenet" else 1
    pixels = 10 if spec.data.kind == "mnist5k" else 1
    return convolutions * pixels * spec.training.epochs


def _train(text: str) -> dict[str, float]:
    listener = Following()
    totals = fit(text, listener).sync.totals
    return {"accuracy": listener.last[names.EVAL_ACCURACY], "wire_bytes": float(totals.wire_bytes)}


FRONT_POINTS = 8
"""So many points of a search's front are trained again with other seeds."""


def hypervolume(points: Sequence[Point], worst: Point) -> float:
    """What trainings dominate: accuracy above a worst one x orders of magnitude of bytes below it.

    `worst` has the least accuracy and the most bytes that count; less than a byte counts as one. Returns
    accuracy as a fraction x decimal orders of magnitude, at least 0.
    """
    area, reached = 0.0, worst.accuracy
    for point in sorted(points, key=lambda point_: (point_.wire_bytes, -point_.accuracy)):
        if point.accuracy > reached and point.wire_bytes < worst.wire_bytes:
            area += (point.accuracy - reached) * math.log10(worst.wire_bytes / max(point.wire_bytes, 1.0))
            reached = point.accuracy
    return area


def front_of(points: Sequence[tuple[float, Point]]) -> list[tuple[float, Point]]:
    """Those that no other beats, by tau; from few bytes to many."""
    front, reached = [], -math.inf
    for tau, point in sorted(points, key=lambda pair: (pair[1].wire_bytes, -pair[1].accuracy)):
        if point.accuracy > reached:
            front.append((tau, point))
            reached = point.accuracy
    return front


def thinned(front: Sequence[tuple[float, Point]], worst: Point, most: int = FRONT_POINTS) -> list[float]:
    """The taus of a front's points, without those whose loss its hypervolume feels least."""
    kept = list(front)
    while len(kept) > most:
        volumes = [
            hypervolume([point for _, point in kept[:i] + kept[i + 1 :]], worst) for i in range(len(kept))
        ]
        del kept[volumes.index(max(volumes))]
    return [tau for tau, _ in kept]


def read_search(folder: Path) -> tuple[Point, list[tuple[float, Point]]]:
    """A search's tables: the run without compression, and the trials that ran in full, by tau."""
    (baseline,) = [_point(row) for row in _rows(folder / "front.csv") if row["trial"] == "baseline"]
    trials = [
        (float(row["compressor.tau"]), _point(row))
        for row in _rows(folder / "trials.csv")
        if row["ending"] == "full"
    ]
    return baseline, trials


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _point(row: dict[str, str]) -> Point:
    return Point(float(row["accuracy_percent"]) / 100, 1e6 * float(row["wire_mb"]))
