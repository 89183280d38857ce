"""Early stopping: a trial is stopped if others dominate it in the metric and in the bytes so far."""

from collections.abc import Mapping

from taugrad.platform.tasks.metric import Metric

from .config import SearchConfig
from .objective import Outcome, in_better_fronts

_ENOUGH = 3
"""The number of other trials at an evaluation that a median needs."""


class Pruner:
    """Remembers every trial at every evaluation. Decisions depend only on the points and their order."""

    def __init__(self, settings: SearchConfig, metric: Metric) -> None:
        """Takes the rules of a search whose trainings are judged by a metric."""
        self._kind, self._grace, self._reduction = settings.pruning, settings.grace, settings.reduction
        self._metric = metric
        self._at: dict[int, dict[int, Outcome]] = {}
        self._stopped: set[int] = set()

    def remember(self, number: int, course: Mapping[int, Outcome], *, stopped: bool) -> None:
        """Takes over a trial of an earlier start of the search.

        Args:
            number: the trial's.
            course: where it stood at each evaluation, counted from 1.
            stopped: whether it was stopped early.
        """
        if stopped:
            self._stopped.add(number)
        for evaluation, outcome in course.items():
            self._at.setdefault(evaluation, {})[number] = outcome

    def stops(self, number: int, evaluation: int, outcome: Outcome, *, last: bool = False) -> bool:
        """Whether to stop a trial that stands so at an evaluation, counted from 1; at its last one: never."""
        stops = self._judge(number, evaluation, outcome) and not last
        if stops:
            self._stopped.add(number)
        return stops

    def _judge(self, number: int, evaluation: int, outcome: Outcome) -> bool:
        others = self._at.setdefault(evaluation, {})
        others[number] = outcome
        if self._kind == "none" or evaluation < self._grace:
            return False
        beside = [each for other, each in others.items() if other != number]
        if self._kind == "median":
            # Trials that were stopped earlier count as worse; else late evaluations have only good trials.
            company = len(beside) + len(self._stopped - others.keys())
            return company >= _ENOUGH and 2 * in_better_fronts(outcome, beside, self._metric) > company
        if not self._is_rung(evaluation):
            return False
        return in_better_fronts(outcome, beside, self._metric) >= max(1.0, len(others) / self._reduction)

    def _is_rung(self, evaluation: int) -> bool:
        rung = self._grace
        while rung < evaluation:
            rung *= self._reduction
        return rung == evaluation
