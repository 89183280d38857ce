"""Reads runs from the tracking store, with their full histories."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.terminal import printable
from taugrad.platform.tracking import names

from .judging import metric_of
from .local_histories import read_histories

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

History: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Steps, ascending, and the value at each."""

BASELINE_RULE = "none"
"""The rule of a run that sends everything."""


@dataclass(frozen=True, eq=False)
class RunHistory:
    """One run: its settings and its results."""

    run_id: str
    name: str
    rule: str
    """The compressor's kind, such as `wgt`."""
    tau: float | None
    """The threshold; None when the rule has none, or not one number."""
    params: Mapping[str, str]
    metrics: Mapping[str, History]
    """The histories that were asked for and exist."""
    finals: Mapping[str, float]
    """The last value of every metric of the run."""
    metric: Metric = ACCURACY
    """What it is judged by; runs that do not say so are older than other metrics than accuracy."""
    paper: str = ""
    """The paper that it repeats."""
    ended: bool = True
    """Whether its status says that it came to its end."""

    @property
    def is_baseline(self) -> bool:
        """Whether the run sent everything."""
        return self.rule == BASELINE_RULE

    @property
    def is_complete(self) -> bool:
        """Whether it trained to its end: one that was stopped has sent less and learned less."""
        if names.TOTAL_ITERATIONS_TO_TARGET in self.finals:
            return True
        if self.params.get("training.iterations", "None") != "None":
            return self.ended
        epoch, epochs = self.final(names.EPOCH), _number(self.params.get("training.epochs"))
        return epoch is None or epochs is None or epoch >= epochs

    @property
    def value(self) -> float | None:
        """What it reached: the last value of its metric, in the unit that people see; None without one."""
        reached = self.final(names.eval_metric(self.metric.name))
        return None if reached is None else self.metric.scale * reached

    def final(self, metric: str) -> float | None:
        """The last value of a metric; None where there is none, or no finite one."""
        value = self.finals.get(metric)
        return value if value is not None and math.isfinite(value) else None


def read_run(client: "MlflowClient", run_id: str, metrics: Iterable[str]) -> RunHistory:
    """Reads a run.

    Args:
        client: The tracking store.
        run_id: The run.
        metrics: Names of the metrics whose full history is wanted, beside that of the one that it is judged
            by; those without a value are left out.

    Returns:
        The run, its histories sorted by step.
    """
    read = to_history(client.get_run(run_id))
    wanted = dict.fromkeys([*metrics, names.eval_metric(read.metric.name)])
    return replace(read, metrics=histories(client, {run_id: wanted})[run_id])


def to_history(run: "Run") -> RunHistory:
    """A run as the store returns it, without histories."""
    params = {name: printable(value) for name, value in run.data.params.items()}
    return RunHistory(
        run_id=str(run.info.run_id),
        name=names.shown(printable(str(run.info.run_name or run.info.run_id))),
        rule=params.get(names.PARAM_RULE, BASELINE_RULE),
        tau=_number(params.get(names.PARAM_TAU)),
        params=params,
        metrics={},
        finals={name: _unclamped(value) for name, value in run.data.metrics.items()},
        metric=metric_of(run.data.tags),
        paper=printable(str(run.data.tags.get(names.TAG_PAPER, ""))),
        ended=str(run.info.status) == "FINISHED",
    )


def histories(client: "MlflowClient", wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, History]]:
    """Every value of some metrics of some runs, sorted by step.

    Args:
        client: The tracking store; a local database is asked once for all, others once for each metric.
        wanted: By run id, the names of metrics.

    Returns:
        By run id and metric; metrics without a value are left out.
    """
    local = read_histories(client.tracking_uri, wanted)
    found: dict[str, dict[str, History]] = {}
    for run_id, metrics in wanted.items():
        found[run_id] = {}
        for name in metrics:
            if local is None:
                points = [(each.step, each.value) for each in client.get_metric_history(run_id, name)]
            else:
                points = local.get((run_id, name), [])
            if points:
                found[run_id][name] = _history(points)
    return found


def _history(points: Sequence[tuple[int, float]]) -> History:
    steps = np.array([step for step, _ in points], dtype=np.int64)
    values = np.array([_unclamped(value) for _, value in points], dtype=np.float64)
    # Stable: two values at one step keep the order of their timestamps, in which they are returned.
    order = np.argsort(steps, kind="stable")
    return steps[order], values[order]


def _unclamped(value: float) -> float:
    """MLflow's databases keep an infinity as the largest float."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else float(value)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
