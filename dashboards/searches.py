"""A search's trials as its view and its figures mark them: on the front, beaten by it, or stopped early."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taugrad.platform.tracking import names

from .dimensions import Mark, Trial
from .experiment import PARENT
from .front import FrontPoint
from .runs import RunHistory, to_history

if TYPE_CHECKING:
    from mlflow.entities import Run

_POINT = (names.TOTAL_WIRE_GB, names.EVAL_ACCURACY)
_MB_PER_GB = 1000.0


@dataclass(frozen=True, eq=False)
class SearchRuns:
    """A search, read back from the tracking store."""

    name: str
    runs: "Sequence[Run]"
    """Its trainings, that without compression among them."""
    points: Sequence[FrontPoint]
    """Trials that were trained in full, means over seeds."""
    stopped: Sequence[FrontPoint]
    """The others that were evaluated at least once, where they stopped."""
    baseline: FrontPoint | None
    trials: Sequence[Trial]

    @property
    def params(self) -> list[dict[str, str]]:
        """The params of each training."""
        return [dict(run.data.params) for run in self.runs]


def searches(found: "Sequence[Run]") -> "dict[str, SearchRuns]":
    """The searches among an experiment's runs, by their parent run's id."""
    parents = {
        str(run.info.run_id): run.data.tags[names.TAG_SEARCH]
        for run in found
        if names.TAG_SEARCH in run.data.tags
    }
    return {
        parent: _read(name, [run for run in found if run.data.tags.get(PARENT) == parent])
        for parent, name in parents.items()
    }


def _read(name: str, runs: "Sequence[Run]") -> SearchRuns:
    full: dict[str, list[RunHistory]] = {}
    stopped: list[RunHistory] = []
    baselines: list[RunHistory] = []
    for run in runs:
        read = to_history(run)
        if any(read.final(metric) is None for metric in _POINT) or run.info.status == "RUNNING":
            continue
        if read.is_baseline:
            baselines.append(read)
        elif read.is_complete:
            full.setdefault(run.data.tags.get(names.TAG_TRIAL, read.run_id), []).append(read)
        else:
            stopped.append(read)
    points, trials, best = list[FrontPoint](), list[Trial](), -math.inf
    placed = [(_point(each), each) for each in full.values()]
    placed.sort(key=lambda each: (each[0].wire_mb, -each[0].value))
    place = 0
    for point, seeds in placed:
        on_front = point.value > best
        best, place = max(best, point.value), place + on_front
        points.append(_point(seeds, place if on_front else None))
        mark: Mark = "front" if on_front else "beaten"
        trials += [Trial(run, 100 * run.finals[names.EVAL_ACCURACY], mark) for run in seeds]
    trials += [Trial(run, 100 * run.finals[names.EVAL_ACCURACY], "stopped") for run in stopped]
    return SearchRuns(
        name,
        runs,
        points,
        [_point([run]) for run in stopped],
        _point(baselines) if baselines else None,
        trials,
    )


def _point(runs: Sequence[RunHistory], place: int | None = None) -> FrontPoint:
    accuracies = [100 * run.finals[names.EVAL_ACCURACY] for run in runs]
    return FrontPoint(
        rule=runs[0].rule,
        value=statistics.fmean(accuracies),
        interval=None,
        wire_mb=_MB_PER_GB * statistics.fmean(run.finals[names.TOTAL_WIRE_GB] for run in runs),
        place=place,
    )
