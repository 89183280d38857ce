"""Measures what several processes do at the same time on a machine that they share.

Workers wait for each other in each step, so the seconds of the slowest one count. All processes start
together each time, as workers do.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

_REPEATS = 5


class Stopwatch:
    """Measures in all processes of a group together; all must call it in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def together(self) -> None:
        """Waits until all processes are here."""
        if dist.get_world_size(self._group) > 1:
            dist.barrier(self._group)

    def anybody(self, *, has: bool) -> bool:
        """Whether the condition holds for any process; the same answer on all."""
        return bool(self.slowest([float(has)])[0])

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """For each of these seconds, the longest of all processes; all must pass the same number."""
        most = torch.tensor(seconds, dtype=torch.float64)
        if dist.get_world_size(self._group) > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._group)
        return [float(each) for each in most]

    def seconds_of(self, do: Callable[[], object]) -> float:
        """The median of a few times of the slowest process, after one that is not counted."""
        taken = []
        for _ in range(1 + _REPEATS):
            self.together()
            started = perf_counter()
            do()
            taken.append(perf_counter() - started)
        return median(self.slowest(taken)[1:])
