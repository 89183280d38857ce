"""Reads the trials of searches, for views and figures."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taugrad.platform.tasks.claims import interval, judged
from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.terminal import printable
from taugrad.platform.tracking import names

from .metric_labels import common
from .runs import RunHistory, to_history
from .search_figures import FrontPoint, Mark, Trial

if TYPE_CHECKING:
    from mlflow.entities import Run

_MB_PER_GB = 1000.0
_BASELINE = "baseline"  # the tag of its trainings


@dataclass(frozen=True, eq=False)
class SearchRuns:
    """A search, read back from the tracking store."""

    name: str
    runs: "Sequence[Run]"
    """Its trainings, the baseline included."""
    points: Sequence[FrontPoint]
    """Trials that were trained in full, means over seeds."""
    stopped: Sequence[FrontPoint]
    """Trials that were stopped, or failed, after an evaluation, with their last values."""
    baseline: FrontPoint | None
    trials: Sequence[Trial]
    metric: Metric = ACCURACY
    """The metric that its trials are judged by."""

    @property
    def params(self) -> list[dict[str, str]]:
        """The params of each training."""
        return [dict(run.data.params) for run in self.runs]


def searches(runs: "Sequence[Run]") -> "dict[str, SearchRuns]":
    """The searches among an experiment's runs, by their parent run's id."""
    parents = {
        str(run.info.run_id): printable(run.data.tags[names.TAG_SEARCH])
        for run in runs
        if names.TAG_SEARCH in run.data.tags
    }
    trials: dict[str, list[Run]] = {}
    for run in runs:
        trials.setdefault(run.data.tags.get(names.TAG_PARENT, ""), []).append(run)
    return {parent: _read(name, trials.get(parent, [])) for parent, name in parents.items()}


def _read(name: str, runs: "Sequence[Run]") -> SearchRuns:
    full: dict[str, list[RunHistory]] = {}
    stopped: list[RunHistory] = []
    for run in runs:
        read = to_history(run)
        if read.value is None or read.final(names.TOTAL_WIRE_GB) is None or run.info.status == "RUNNING":
            continue
        trial = run.data.tags.get(names.TAG_TRIAL, read.run_id)
        if read.is_complete and run.data.tags.get(names.TAG_ENDING, "full") == "full":
            full.setdefault(trial, []).append(read)
        elif trial != _BASELINE:
            stopped.append(read)
    metrics = common(run.metric for run in [*stopped, *(run for seeds in full.values() for run in seeds)])
    metric = metrics[0] if metrics else ACCURACY
    baselines = full.pop(_BASELINE, None)
    points, trials, best = list[FrontPoint](), list[Trial](), -math.inf
    ranked = [(metric.sign * judged(list(map(_value, seeds)), metric), seeds) for seeds in full.values()]
    ranked.sort(key=lambda pair: (_point(pair[1]).wire_mb, -pair[0]))
    place = 0
    for value, seeds in ranked:
        on_front = value > best
        best, place = max(best, value), place + on_front
        points.append(_point(seeds, place if on_front else None))
        mark: Mark = "front" if on_front else "beaten"
        trials += [Trial(run, _value(run), mark) for run in seeds]
    trials += [Trial(run, _value(run), "stopped") for run in stopped]
    return SearchRuns(
        name,
        runs,
        points,
        [_point([run]) for run in stopped],
        _point(baselines) if baselines else None,
        trials,
        metric,
    )


def _value(run: RunHistory) -> float:
    value = run.value
    assert value is not None  # others are left out
    return value


def _point(runs: Sequence[RunHistory], place: int | None = None) -> FrontPoint:
    metric, examples = runs[0].metric, runs[0].final(names.EVAL_EXAMPLES)
    values = [_value(run) for run in runs]
    ends = interval([value / metric.scale for value in values], int(examples) if examples else None, metric)
    return FrontPoint(
        rule=runs[0].rule,
        value=statistics.fmean(values),
        interval=(metric.scale * ends[0], metric.scale * ends[1]) if ends else None,
        wire_mb=_MB_PER_GB * statistics.fmean(run.finals[names.TOTAL_WIRE_GB] for run in runs),
        place=place,
    )
