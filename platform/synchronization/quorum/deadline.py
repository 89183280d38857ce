"""When a round closes, and who is in it.

A round waits for late workers for a multiple of the time that rounds usually take. One authority keeps the
first proposal of its members: an actor of the driver where Ray runs the workers (`launching/run_status.py`),
else the store of torch's process group. It outlives the workers. A decision is one write, so that two workers
never learn of two.
"""

from collections import deque
from collections.abc import Callable, Collection
from statistics import median
from time import monotonic
from typing import Any

import torch.distributed as dist

from ..config import Deadline

_LATEST = 16
_ENOUGH = 3
"""Rounds after which their usual time is known."""


class RoundDeadline:
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


Decide = Callable[[str, str], str]
"""Writes a value under a key where there is none yet; returns the value that is there."""


def by_store(store: Any = None) -> Decide:
    """Decides in a store of torch; by default that of the process group."""
    kept = dist.distributed_c10d._get_default_store() if store is None else store

    def decide(key: str, value: str) -> str:
        there: bytes = kept.compare_set(key, "", value)
        return there.decode()

    return decide


def close_round(decide: Decide, attempt: int, number: int, members: Collection[int]) -> frozenset[int]:
    """Closes a round, unless another worker has: the members that were decided.

    `attempt` is the same on every worker, and another one each time that rounds are counted anew: what is
    repeated from a checkpoint is decided again.
    """
    proposed = ",".join(map(str, sorted(members)))
    return frozenset(map(int, decide(f"taugrad/rounds/{attempt}/{number}", proposed).split(",")))
