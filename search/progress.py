"""The progress of a search, derived from its journal."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taugrad.platform.places import address_of
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.run import PublishConfig
from taugrad.platform.tasks.claims import interval
from taugrad.platform.tasks.metric import Metric

from .config import SearchConfig
from .journal import BASELINE, Ended, Ending, Reported, SearchJournal, Started, Trained, Trial
from .objective import Objective, TrialOutcome, front
from .search import Search
from .trial import Task, summary

_SEEN = ("evaluation", "share", "value", "wire_bytes", "spent_bytes")


@dataclass(frozen=True, kw_only=True)
class Point(TrialOutcome):
    """A trial that ran in full, with all its seeds."""

    number: int
    """The trial's number; -1 for the baseline."""
    params: Mapping[str, Any]
    method: str
    """The compressor's line."""
    mean: float
    """The mean of the metric over the seeds."""
    spread: float | None
    """Standard deviation of the seeds' values; None for a single seed."""
    interval: tuple[float, float] | None
    """The 95% interval of the mean (see `platform.tasks.claims`); None if there is none."""
    run_ids: tuple[str, ...]

    @classmethod
    def of(cls, trial: Trial, metric: Metric) -> "Point":
        """The point of a trial that ran in full."""
        values, examples = [training.value for training in trial.trainings], trial.trainings[0].examples
        judged = summary([training.outcome for training in trial.trainings], metric)
        return cls(
            number=trial.number,
            params=trial.params,
            method=trial.method,
            value=judged.value,
            wire_bytes=judged.wire_bytes,
            mean=statistics.fmean(values),
            spread=statistics.stdev(values) if len(values) > 1 else None,
            interval=interval(values, examples, metric),
            examples=examples,
            run_ids=tuple(training.run_id for training in trial.trainings),
        )


def times_smaller(point: TrialOutcome, baseline: TrialOutcome) -> float:
    """How many times smaller a point's bytes are than those of the run without compression (float32)."""
    return baseline.wire_bytes / max(point.wire_bytes, 1.0)


class SearchProgress:
    """One start of a search: records events, and derives the remaining work."""

    def __init__(self, search: Search, journal: SearchJournal) -> None:
        """Continues from a journal."""
        self.search, self.journal, self.record = search, journal, journal.record
        self.running: dict[int, Trial] = {}
        self.unfinished: dict[str, str] = {}
        """MLflow runs that can be continued, by their spec's fingerprint."""
        self.store_problem = ""
        """Why the tracking store takes no training; empty: it does."""
        self.notices: list[tuple[int, str]] = []
        """What the user should know of trainings, with the trial's number."""
        self._changed: Callable[[], None] = lambda: None
        self._before = self.record.seconds
        self._began = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Pickles nothing: Tune pickles its arguments, but a search continues from its journal."""
        return {}

    def on_change(self, changed: Callable[[], None]) -> None:
        """Registers a function that is called after every event."""
        self._changed = changed

    @property
    def settings(self) -> SearchConfig:
        """The `search` section."""
        return self.search.settings

    @property
    def metric(self) -> Metric:
        """The metric that trials are judged by."""
        return self.search.metric

    @property
    def seconds(self) -> float:
        """How long the search has run, summed over its starts."""
        return self._before + time.monotonic() - self._began

    @property
    def baseline(self) -> Point | None:
        """The point of the run without compression, once it has finished."""
        trial = self.record.trials.get(BASELINE)
        return Point.of(trial, self.metric) if trial is not None and trial.ending == "full" else None

    @property
    def points(self) -> list[Point]:
        """The points of trials that ran in full; a trial that was stopped early does not count."""
        return [Point.of(trial, self.metric) for trial in self.record.ended if trial.ending == "full"]

    @property
    def front(self) -> list[Point]:
        """The points that no other dominates, from few bytes to many."""
        return front(self.points, self.metric)

    def place(self, point: Point) -> int:
        """The place of a point on the front, from 1."""
        return [other.number for other in self.front].index(point.number) + 1

    @property
    def objective(self) -> Objective:
        """The objective of the search."""
        settings = self.settings
        return Objective(settings.objective, self.metric, settings.tolerance, self.baseline)

    @property
    def left(self) -> int:
        """Trials that the budget still allows."""
        return max(0, self.settings.trials - len(self.record.ended))

    @property
    def next_number(self) -> int:
        """The number of the next new trial."""
        return max(self.record.trials, default=BASELINE) + 1

    def exhausted(self) -> str:
        """The budget that is used up, as text; empty if none is."""
        settings = self.settings
        if settings.minutes is not None and self.seconds >= 60 * settings.minutes:
            return f"search.minutes = {settings.minutes:g}"
        if settings.wire_gb is not None and self.record.spent_bytes >= 1e9 * settings.wire_gb:
            return f"search.wire_gb = {settings.wire_gb:g}"
        return ""

    @property
    def incomplete(self) -> bool:
        """Whether trials are left, and no budget is used up."""
        return bool(self.left) and not self.exhausted()

    def begin(self, params: Mapping[str, Any]) -> Task:
        """Starts the trial of a point, or continues an interrupted one."""
        waiting = (trial for trial in self.record.interrupted if trial.number not in self.running)
        again = next((trial for trial in waiting if _same(trial.params, params)), None)
        number = again.number if again is not None else self.next_number
        return self._start(number, f"trial {number}", params, lambda: self.search.spec(params))

    def begin_baseline(self) -> Task:
        """Starts the run without compression."""
        return self._start(BASELINE, "baseline", {}, self.search.baseline)

    def report(self, number: int, result: Mapping[str, Any]) -> None:
        """Records what a trial reports (see `trial.run_task`)."""
        self.notices += [(number, notice) for notice in result.get("notices", ())]
        fields = {key: result[key] for key in _SEEN}
        events: list[Any] = [Reported(number=number, seconds=self.seconds, **fields)]
        if result.get("training"):
            events.append(Trained(number=number, **result["training"]))
        if result["full"]:
            events.append(Ended(number=number, ending="full", seconds=self.seconds))
        self.journal.add(*events)
        if result["full"]:
            self.running.pop(number, None)
        self._changed()

    def lose(self, number: int) -> bool:
        """Called when a trial runs no more; returns whether it reported no end and must be continued."""
        lost = self.running.pop(number, None) is not None
        if lost:
            self._changed()
        return lost

    def stop(self, number: int, problem: str) -> None:
        """Called when the tracking store did not take a trial's training: the trial must be continued."""
        self.store_problem = self.store_problem or problem
        self.lose(number)

    def lose_all(self) -> list[int]:
        """Called when no trial runs any more; returns those without an end, which must be continued."""
        self.running.clear()
        return [trial.number for trial in self.record.interrupted]

    def give_up(self, number: int, reason: str) -> None:
        """Marks a trial without an end as failed, because it will not be continued."""
        self.running[number] = self.record.trials[number]
        self.end(number, "failed", reason)

    def end(self, number: int, ending: Ending, reason: str = "") -> None:
        """Records that a trial was stopped early, or failed."""
        if number in self.running:
            del self.running[number]
            self.journal.add(Ended(number=number, ending=ending, reason=reason, seconds=self.seconds))
        self._changed()

    def _start(self, number: int, label: str, params: Mapping[str, Any], spec: Callable[[], RunSpec]) -> Task:
        specs, problem = [], ""
        try:
            valid = spec()
            # Trials may be on other machines, and in other folders; only a run that is asked for publishes.
            changed = {"storage": Path(address_of(valid.storage)), "publish": PublishConfig()}
            valid = valid.model_copy(update=changed)
            specs = self.search.seeds(valid)
        except SpecError as error:
            problem = str(error)
        method, epochs = (str(specs[0].compressor), specs[0].training.epochs) if specs else ("", 1)
        prints = [spec.fingerprint() for spec in specs]
        trained = self.record.trainings
        first = next((fingerprint for fingerprint in prints if fingerprint not in trained), None)
        self.journal.add(
            Started(
                number=number,
                params=dict(params),
                method=method,
                epochs=epochs,
                goes_on=first in self.unfinished,
            )
        )
        self.running[number] = self.record.trials[number]
        self._changed()
        return Task(
            number=number,
            label=label,
            specs=[spec.model_dump_json() for spec in specs],
            problem=problem,
            known={
                fingerprint: trained[fingerprint].outcome for fingerprint in prints if fingerprint in trained
            },
            unfinished={
                fingerprint: self.unfinished[fingerprint]
                for fingerprint in prints
                if fingerprint in self.unfinished
            },
        )


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return bool(a == b)
