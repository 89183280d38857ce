"""A made-up timing: which messages each worker has received before each of its steps.

It is the same wherever it is computed. Legend: K workers; a row has a value for every worker, or for every
link, at one step.
"""

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Course:
    """How fast workers and links are. The unit of time is a step."""

    step_times: tuple[float, ...]
    """Of each worker."""
    delay: tuple[float, float]
    """The least and the most that a message takes; in between it is drawn for each."""
    seed: int
    most_behind: int
    """How many steps a worker may be ahead of what it has received from any other worker, before it waits. 0:
    before each step, it waits for the others' messages of the previous step."""


class Schedule:
    """Which messages each worker has applied before each of its steps, since all of them were drained.

    A worker begins a step when it has finished the one before and is not too far ahead. Its message leaves at
    the end of the step, and arrives after a delay, but never before an earlier message of the same sender.
    What has arrived when a step begins, or arrives at the same moment, is applied before the step. So workers
    of equal speed and messages without delay give synchronous training.

    Everything is a function of the course and of the numbers of steps; no call depends on earlier calls.
    """

    def __init__(self, course: Course, first: int) -> None:
        """Begins at time 0, when all workers have applied everything.

        `first` are every worker's steps before this in the whole run; delays are drawn from it.
        """
        self._course, self._first = course, first
        self._times = np.array(course.step_times)
        self._starts: list[NDArray[np.float64]] = []
        """float64 [K] a row: when each worker begins the step."""
        self._arrivals: list[NDArray[np.float64]] = []
        """float64 [K, K] a row: when the step's message from row arrives at column."""

    def received(self, worker: int, step: int) -> list[int]:
        """By sender, how many of its messages a worker has applied before a step of its own.

        Steps and messages count from the schedule's beginning. A sender that ends earlier counts as if it
        continued.
        """
        self._extend(step)
        start = self._starts[step][worker]
        while self._arrivals[-1][:, worker].min() <= start:
            self._extend(len(self._starts))
        return [
            step
            if sender == worker
            else bisect_right(self._arrivals, start, key=itemgetter((sender, worker)))
            for sender in range(len(self._times))
        ]

    def _extend(self, step: int) -> None:
        while len(self._starts) <= step:
            self._add_row()

    def _add_row(self) -> None:
        step, behind = len(self._starts), self._course.most_behind
        starts = np.zeros_like(self._times)
        if step:
            starts = self._starts[-1] + self._times
        if step > behind:
            needed = self._arrivals[step - behind - 1].copy()
            np.fill_diagonal(needed, 0)  # a worker waits for the others only
            starts = np.maximum(starts, needed.max(axis=0))
        arrivals = (starts + self._times)[:, None] + self._delays(step)
        if step:
            arrivals = np.maximum(arrivals, self._arrivals[-1])
        self._starts.append(starts)
        self._arrivals.append(arrivals)

    def _delays(self, step: int) -> NDArray[np.float64]:
        """float64 [K, K], of one step's messages from row to column."""
        links = (len(self._times), len(self._times))
        least, most = self._course.delay
        if least == most:
            return np.full(links, least)
        return np.random.default_rng([self._course.seed, self._first + step]).uniform(least, most, links)
