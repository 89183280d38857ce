"""How long rounds usually take, and therefore how long a round waits for late workers."""

from collections import deque
from statistics import median
from time import monotonic

from ..config import Deadline

_LATEST = 16
_ENOUGH = 3
"""Rounds after which their usual time is known."""


class Pace:
    """One worker's times of rounds: from the start of its round until a quorum's offers are there."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self._began, self._is_noted = monotonic(), False

    def begin(self) -> None:
        """A round begins."""
        self._began, self._is_noted = monotonic(), False

    def pause(self, seconds: float) -> None:
        """Leaves out seconds in which the worker did something else."""
        self._began += seconds

    @property
    def waited_s(self) -> float:
        """Seconds since the round began."""
        return monotonic() - self._began

    def note(self) -> None:
        """Called when a quorum's offers are there; only the first call counts."""
        if not self._is_noted:
            self._is_noted = True
            self._seconds.append(self.waited_s)

    @property
    def deadline_s(self) -> float:
        """Seconds after which a round closes without late workers."""
        if len(self._seconds) < _ENOUGH:
            return self._deadline.most
        usual_s = self._deadline.factor * median(self._seconds)
        return min(self._deadline.most, max(self._deadline.least, usual_s))
