"""Trainings for choose/auto_threshold.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from taugrad.platform.spec import RunSpec

from ..harness import trainings
from ..harness.sync_runs import train_here


@dataclass(frozen=True)
class Point:
    """What a training came to."""

    accuracy: float
    wire_bytes: float


class Trainings:
    """Outcomes as points."""

    def __init__(self, path: Path) -> None:
        self._all = trainings.Trainings(path, _train, _work)

    def known(self, spec: RunSpec) -> Point | None:
        """A training, or None where it is not done yet."""
        found = self._all.known(spec)
        return None if found is None else Point(**found)

    def of(self, spec: RunSpec) -> Point:
        """A training that is done."""
        return Point(**self._all.of(spec))

    def train(self, specs: Sequence[RunSpec], say: Callable[[str], None]) -> None:
        """Trains what is not done yet."""
        self._all.train(specs, say)


def _work(spec: RunSpec) -> float:
    convolutions = 4 if spec.model.kind == "lenet" else 1
    pixels = 10 if spec.data.kind == "mnist5k" else 1
    return convolutions * pixels * spec.training.epochs


def _train(text: str) -> dict[str, float]:
    outcome = train_here(RunSpec.model_validate_json(text))
    return {"accuracy": outcome.accuracy, "wire_bytes": float(outcome.wire_bytes)}
