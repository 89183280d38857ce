"""Runs of an experiment, as figures, tables and reports read them.

Params and last values of a thousand runs are one or two requests; histories are read for the runs that are
drawn.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from taugrad.platform.spec import COMMAND_LINE, SpecError
from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.terminal import printable
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import every_run

from .histories import History, histories, over_rounds, unclamped
from .metric_labels import metric_of

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

BASELINE_RULE = "none"
"""The rule of a run that sends everything."""
_SENT = (names.COMM_FRACTION, names.COMM_WIRE_BYTES)
_MORE_THAN_HEADERS = 1.5  # a compression that comes from exchanging less often


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
    """Those that were read."""
    finals: Mapping[str, float]
    """The last value of every metric of the run."""
    metric: Metric = ACCURACY
    """The metric that it is judged by."""
    paper: str = ""
    """The paper that it repeats."""
    ended: bool = True
    """Whether its status says that it came to its end."""

    @property
    def is_baseline(self) -> bool:
        """Whether the run sent everything in every step; local steps without a compressor did not."""
        ratio = self.final(names.TOTAL_COMPRESSION_RATIO)
        return self.rule == BASELINE_RULE and (ratio is None or ratio < _MORE_THAN_HEADERS)

    @property
    def is_complete(self) -> bool:
        """Whether it trained to its end, and was not stopped early."""
        if names.TOTAL_ITERATIONS_TO_TARGET in self.finals:
            return True
        if self.params.get("training.iterations", "None") != "None":
            return self.ended
        epoch, epochs = self.final(names.EPOCH), number(self.params.get("training.epochs"))
        return self.ended if epoch is None or epochs is None else epoch >= epochs

    @property
    def value(self) -> float | None:
        """The last value of its metric, in the displayed unit; None without one."""
        value = self.final(names.eval_metric(self.metric.name))
        return None if value is None else self.metric.scale * value

    def final(self, metric: str) -> float | None:
        """The last value of a metric; None if there is none, or none that is finite."""
        value = self.finals.get(metric)
        return value if value is not None and math.isfinite(value) else None


def read_run(client: "MlflowClient", run_id: str, metrics: Iterable[str]) -> RunHistory:
    """Reads a run, with the histories of its own metric and of others."""
    run = to_history(client.get_run(run_id))
    (read,) = with_histories(client, [run], metrics)
    return read


def to_history(run: "Run") -> RunHistory:
    """Converts a run of the store, without histories."""
    params = {name: printable(value) for name, value in run.data.params.items()}
    return RunHistory(
        run_id=str(run.info.run_id),
        name=names.shown(printable(str(run.info.run_name or run.info.run_id))),
        rule=params.get(names.PARAM_RULE, BASELINE_RULE),
        tau=number(params.get(names.PARAM_TAU)),
        params=params,
        metrics={},
        finals={name: unclamped(value) for name, value in run.data.metrics.items()},
        metric=metric_of(run.data.tags),
        paper=printable(str(run.data.tags.get(names.TAG_PAPER, ""))),
        ended=str(run.info.status) == "FINISHED",
    )


def all_runs(client: "MlflowClient", experiment_id: str, only: str = "") -> "list[Run]":
    """Every run of an experiment that was not deleted, oldest first, with params, tags and last values.

    Args:
        client: The tracking store.
        experiment_id: The experiment.
        only: MLflow's filter of runs. The parents of searches, which have no params, are returned all.

    Raises:
        SpecError: MLflow does not understand the filter.
    """
    runs = list(every_run(client, [experiment_id], oldest_first=True))
    if not only:
        return runs
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes two seconds

    try:
        kept = {run.info.run_id for run in every_run(client, [experiment_id], only)}
    except MlflowException as error:
        raise SpecError(COMMAND_LINE, f"--filter {only!r}: {printable(str(error))}") from error
    return [run for run in runs if run.info.run_id in kept or names.TAG_SEARCH in run.data.tags]


def compared_runs(runs: "Iterable[Run]") -> list[RunHistory]:
    """The runs that trained something, without histories: all but the parents of searches."""
    return [to_history(run) for run in runs if names.PARAM_RULE in run.data.params]


def with_histories(
    client: "MlflowClient", runs: Sequence[RunHistory], metrics: Iterable[str]
) -> list[RunHistory]:
    """The runs with the histories of some metrics, and of their own metric, if they logged them.

    What is sent is averaged from exchange to exchange.
    """
    common = list(metrics)
    missing = {
        run.run_id: [
            name
            for name in dict.fromkeys([*common, names.eval_metric(run.metric.name)])
            if name in run.finals and name not in run.metrics
        ]
        for run in runs
    }
    read = histories(client, missing)
    for metrics_read in read.values():
        metrics_read |= {name: over_rounds(metrics_read[name]) for name in _SENT if name in metrics_read}
    return [replace(run, metrics={**run.metrics, **read[run.run_id]}) for run in runs]


def number(text: str | None) -> float | None:
    """A param that is a number."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
