"""Trainings for choose/auto_threshold.py."""

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
