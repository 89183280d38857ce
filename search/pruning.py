"""When a trial is stopped early: others dominate it in accuracy so far and bytes so far at the same epoch."""

from collections.abc import Mapping

from .config import SearchConfig
from .objective import Outcome, in_better_fronts

_ENOUGH = 3
"""Others at an epoch, without which their median says little."""


class Pruner:
    """Remembers every trial at every epoch; the same points in the same order are judged alike."""

    def __init__(self, settings: SearchConfig, epochs: int) -> None:
        """Takes the rules of a search whose full trainings have so many epochs."""
        self._kind, self._grace, self._reduction = settings.pruning, settings.grace, settings.reduction
        self._epochs = epochs
        self._at: dict[int, dict[int, Outcome]] = {}
        self._stopped: set[int] = set()

    def remember(self, number: int, course: Mapping[int, Outcome], *, stopped: bool) -> None:
        """Takes over a trial of an earlier start of the search.

        Args:
            number: the trial's.
            course: where it stood after each epoch, counted from 1.
            stopped: whether it was stopped early.
        """
        if stopped:
            self._stopped.add(number)
        for epoch, outcome in course.items():
            self._at.setdefault(epoch, {})[number] = outcome

    def stops(self, number: int, epoch: int, outcome: Outcome) -> bool:
        """Whether to stop a trial that stands so after an epoch, counted from 1."""
        stops = self._judge(number, epoch, outcome)
        if stops:
            self._stopped.add(number)
        return stops

    def _judge(self, number: int, epoch: int, outcome: Outcome) -> bool:
        others = self._at.setdefault(epoch, {})
        others[number] = outcome
        if self._kind == "none" or epoch >= self._epochs or epoch < self._grace:
            return False
        beside = [each for other, each in others.items() if other != number]
        if self._kind == "median":
            # Those that were stopped before are behind; else late epochs would know the good ones only.
            company = len(beside) + len(self._stopped - others.keys())
            return company >= _ENOUGH and 2 * in_better_fronts(outcome, beside) > company
        if not self._is_rung(epoch):
            return False
        return in_better_fronts(outcome, beside) >= max(1.0, len(others) / self._reduction)

    def _is_rung(self, epoch: int) -> bool:
        rung = self._grace
        while rung < epoch:
            rung *= self._reduction
        return rung == epoch
