"""Past runs in MLflow, grouped by setting: everything in a spec except the seed and the value to predict."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from taugrad.compressors.tau.by_law import Features, LayerStatistics, features
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import every_run

from ..measured import judged_by_accuracy, outcome_of
from ..momentum import decay_beside
from ..objective import Outcome

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

BATCH, RATE, WORKERS = "training.batch_size", "training.optimizer.lr", "workers.count"
OPTIMIZER = "training.optimizer.kind"
OWN_MOMENTUM, OPTIMIZER_MOMENTUM = "compressor.momentum", "training.optimizer.momentum"
_DECAY = "training.optimizer.weight_decay"
_FAMILY = ("model.", "data.")
"""Params that make two settings ones of the same model and data."""
_ELSEWHERE = ("name", "experiment", "seed", "paper", "storage", "tracking.", "checkpoint.")
"""Params that say nothing about what was computed, and the seed."""
_MACHINE = ("workers.cpus", "workers.device", "workers.max_restarts")
_METHOD = "compressor."
_LAYER = re.compile(r"^layer/(.+)/elements$")


@dataclass(frozen=True)
class PastRun:
    """A run with a given value."""

    value: float
    outcome: Outcome
    run_id: str


@dataclass
class PastSetting:
    """Runs that differ only in the value and the seed."""

    params: Mapping[str, str]
    """Of the spec."""
    around: str
    """A key of settings that differ in the method only."""
    runs: list[PastRun] = field(default_factory=list)
    baselines: list[Outcome] = field(default_factory=list)
    """Results of the same runs without compression."""
    features: Features | None = None
    """Of worker 0's gradients in the first iteration; None if no run recorded them."""

    @property
    def family(self) -> str:
        """A key of settings of one model and data set."""
        return str(sorted((key, self.params[key]) for key in self.params if key.startswith(_FAMILY)))

    @property
    def momentum_correction(self) -> float:
        """The compressor's, 0 to 1."""
        return _number(self.params.get(OWN_MOMENTUM, "")) or 0.0

    @property
    def momentum_in(self) -> Literal["optimizer", "compressor"] | None:
        """Where the momentum was: in the optimizer or the compressor; None if there was none."""
        if self.momentum_correction:
            return "compressor"
        return "optimizer" if _number(self.params.get(OPTIMIZER_MOMENTUM, "")) else None

    def number(self, param: str) -> float:
        """A param that is a number; NaN without one."""
        number = _number(self.params.get(param, ""))
        return math.nan if number is None else number


def value_param(kind: str) -> str:
    """The param that a law predicts: Oland-Raj's floor, or a threshold."""
    return f"{_METHOD}floor" if kind == "entropy" else names.PARAM_TAU


def past_settings(client: "MlflowClient", experiments: Sequence[str], kind: str) -> list[PastSetting]:
    """The settings of a method's runs that are judged by accuracy, trials of searches included.

    In the order of their first runs; `experiments` are ids, `kind` is the method's, such as strom.
    """
    settings: dict[str, PastSetting] = {}
    bare: dict[str, list[Outcome]] = {}
    looked_at: dict[str, list[Run]] = {}
    for run in _finished(client, experiments):
        params, outcome = run.data.params, outcome_of(run.data.metrics, ACCURACY)
        if outcome is None or not judged_by_accuracy(run.data.tags):
            continue
        computed = {
            key: value
            for key, value in params.items()
            if not key.startswith(_ELSEWHERE) and key not in _MACHINE
        }
        around = _around(computed)
        looked_at.setdefault(around, []).append(run)
        if params.get(names.PARAM_RULE) == "none":
            bare.setdefault(around, []).append(outcome)
        value = _number(params.get(value_param(kind), ""))
        if params.get(names.PARAM_RULE) != kind or value is None:
            continue
        kept = {key: text for key, text in computed.items() if key != value_param(kind)}
        setting = settings.setdefault(str(sorted(kept.items())), PastSetting(kept, around))
        setting.runs.append(PastRun(value, outcome, str(run.info.run_id)))
    for setting in settings.values():
        setting.baselines = bare.get(setting.around, [])
        recorded = (first_features(client, run) for run in looked_at[setting.around])
        setting.features = next((features for features in recorded if features is not None), None)
    return list(settings.values())


def judged_otherwise(client: "MlflowClient", experiments: Sequence[str]) -> int:
    """How many finished runs are judged by another metric than accuracy."""
    return sum(not judged_by_accuracy(run.data.tags) for run in _finished(client, experiments))


def kinds_with_a_value(client: "MlflowClient", experiments: Sequence[str]) -> dict[str, tuple[int, int]]:
    """By method: its finished runs, and how many of them have a number as the param that a law predicts."""
    counts: dict[str, tuple[int, int]] = {}
    for run in _finished(client, experiments):
        kind = run.data.params.get(names.PARAM_RULE, "?")
        runs, numbers = counts.get(kind, (0, 0))
        counts[kind] = runs + 1, numbers + (_number(run.data.params.get(value_param(kind), "")) is not None)
    return counts


def _around(params: Mapping[str, str]) -> str:
    """The params that a run shares with the same run without compression, with momentum in the optimizer."""
    momentum = _number(params.get(OWN_MOMENTUM, ""))
    kept = {key: value for key, value in params.items() if not key.startswith(_METHOD)}
    decay = _number(kept.get(_DECAY, ""))
    if momentum and OPTIMIZER_MOMENTUM in kept and decay is not None:
        kept |= {
            OPTIMIZER_MOMENTUM: str(momentum),
            _DECAY: str(decay_beside(momentum, decay, kept.get(OPTIMIZER, ""))),
        }
    return str(sorted(kept.items()))


def first_features(client: "MlflowClient", run: "Run") -> Features | None:
    """What a run recorded of its first iteration's gradients, which no threshold has changed yet."""
    layers = [match[1] for match in map(_LAYER.match, run.data.metrics) if match]
    statistics = []
    for layer in layers:
        numbers = [
            _first(client, str(run.info.run_id), f"layer/{layer}/{what}")
            for what in ("elements", "grad_rms", "grad_p99", "grad_p999")
        ]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            statistics.append(LayerStatistics(*known))
    return features(statistics)


def _first(client: "MlflowClient", run_id: str, metric: str) -> float | None:
    """A metric's value in the first iteration, MLflow's step 1."""
    history = client.get_metric_history(run_id, metric)
    return next((float(point.value) for point in history if point.step == 1), None)


def _finished(client: "MlflowClient", experiments: Sequence[str]) -> "Iterator[Run]":
    return every_run(client, experiments, "attributes.status = 'FINISHED'", oldest_first=True)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
