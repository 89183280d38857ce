"""The arrays that contenders work on, and the stopwatch: every time stands beside a floor of the same round.

Legend: N elements of a gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import torch
from report import Spread

Work = Callable[[], object]
Clock = Callable[[], float]
"""Runs something and returns the seconds it took."""


@dataclass(frozen=True)
class Rounds:
    """How often to measure: as many rounds as fit into a time, between a least and a most."""

    least: int
    most: int
    seconds: float

    def count(self, seconds_a_round: float) -> int:
        """Rounds for what takes so long."""
        return min(max(self.least, int(self.seconds / seconds_a_round)), self.most)


@dataclass(frozen=True)
class Timing:
    """What some rounds of one contender came to."""

    seconds: Spread
    ratio: Spread
    """To whatever it was timed against, in the same round."""


class Arena:
    """A gradient and a residual of normal values, float32 [N]."""

    def __init__(self, elements: int) -> None:
        rng = np.random.default_rng(0)
        self.gradient_N = rng.standard_normal(elements, dtype=np.float32)
        self.start_N = rng.standard_normal(elements, dtype=np.float32) * np.float32(0.5)
        """The residual before each pass."""
        self.residual_N = self.start_N.copy()
        self.gradient, self.residual = torch.from_numpy(self.gradient_N), torch.from_numpy(self.residual_N)
        self.magnitude_N = np.abs(self.residual_N + self.gradient_N)
        """What a pass compares with tau."""
        self.floor_seconds: list[float] = []

    @property
    def elements(self) -> int:
        """N."""
        return self.gradient_N.size

    def count(self, density: float) -> int:
        """Elements of a share, as top-k counts them."""
        return max(1, int(density * self.elements))

    def tau(self, density: float) -> np.float32:
        """The threshold that a share of the elements reaches."""
        rank = self.elements - self.count(density)
        tau: np.float32 = np.partition(self.magnitude_N, rank)[rank]
        return tau

    def reset(self) -> None:
        """Sets the residual back to where each pass begins; what lay in the caches is gone then."""
        np.copyto(self.residual_N, self.start_N)

    def add(self) -> None:
        """The floor: a rule that keeps a residual cannot do less."""
        self.residual.add_(self.gradient)

    def seconds(self, work: Work, *, warm: bool = False) -> float:
        """Times one run from the same residual; a warm one comes right after another, which is not timed."""
        self.reset()
        if warm:
            work()
        started = perf_counter()
        work()
        return perf_counter() - started

    def against_floor(self, contenders: list[Work], rounds: Rounds, *, warm: bool) -> list[Timing]:
        """Ratios to the floor, which is one thread's, of contenders that take turns."""
        clocks: list[Clock] = [partial(self.seconds, work, warm=warm) for work in contenders]
        return _compare(self._floor, clocks, rounds)

    def against(self, base: Work, contender: Work, rounds: Rounds, *, warm: bool) -> Timing:
        """Ratios to another work."""
        clock = partial(self.seconds, contender, warm=warm)
        return _compare(partial(self.seconds, base, warm=warm), [clock], rounds)[0]

    def _floor(self) -> float:
        seconds = self.seconds(self.add)
        self.floor_seconds.append(seconds)
        return seconds


def _compare(base: Clock, clocks: list[Clock], rounds: Rounds) -> list[Timing]:
    """Lets the clocks take turns, each right after one of `base`, after a round that does not count."""
    _round(base, clocks)  # compiles, and fills the caches that nobody empties
    started = perf_counter()
    measured = [_round(base, clocks)]
    measured += [_round(base, clocks) for _ in range(rounds.count(perf_counter() - started) - 1)]
    return [
        Timing(Spread.of([own for _, own in times]), Spread.of([own / other for other, own in times]))
        for times in zip(*measured, strict=True)
    ]


def _round(base: Clock, clocks: list[Clock]) -> list[tuple[float, float]]:
    return [(base(), clock()) for clock in clocks]
