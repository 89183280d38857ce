"""The forward schemes: whose examples go through the fully connected layers together (section 4.1).

(a) The examples of all workers at once. (b) Those of one worker after the other. (c) Each turn has 1/K of
every worker's examples. The schemes differ only in the examples of a turn, which this module decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

Scheme = Literal["a", "b", "c"]


@dataclass(frozen=True)
class Rows:
    """Some of one worker's examples."""

    worker: int
    start: int
    """Their numbers among that worker's examples."""
    stop: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.stop - self.start


@dataclass(frozen=True)
class Turn:
    """Examples that go through the fully connected layers together, in the order of workers."""

    rows: tuple[Rows, ...]
    """None is empty; ascending by worker."""

    @property
    def examples(self) -> int:
        """How many there are."""
        return sum(each.count for each in self.rows)

    def by_worker(self, workers: int) -> list[Rows]:
        """The rows of each worker, by rank; empty for workers without examples in this turn."""
        found = {each.worker: each for each in self.rows}
        return [found.get(rank, Rows(rank, 0, 0)) for rank in range(workers)]


def turns_of(scheme: Scheme, counts: Sequence[int]) -> list[Turn]:
    """The turns of one iteration, each with at least one example.

    Args:
        scheme: a, b or c.
        counts: examples of each worker.
    """
    workers = len(counts)
    match scheme:
        case "a":
            all_rows = [[Rows(rank, 0, count) for rank, count in enumerate(counts)]]
        case "b":
            all_rows = [[Rows(rank, 0, count)] for rank, count in enumerate(counts)]
        case "c":
            all_rows = [
                [
                    Rows(rank, count * turn // workers, count * (turn + 1) // workers)
                    for rank, count in enumerate(counts)
                ]
                for turn in range(workers)
            ]
    turns = [Turn(tuple(each for each in rows if each.count)) for rows in all_rows]
    return [turn for turn in turns if turn.examples]


def first_rows(counts: Sequence[int]) -> list[int]:
    """Where each worker's examples begin in the whole batch."""
    return list(accumulate(counts, initial=0))[:-1]
