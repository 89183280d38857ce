"""The ways that can win, by the plan's seconds of a step and the measured worths of steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from taugrad.platform.synchronization.config import GradientsSync

from ..plan.calibrated import HALF, Calibration
from ..plan.candidate import Candidate
from ..plan.link import Link
from ..plan.planning import advised, is_for, predict
from ..plan.step_model import StepTime
from ..ways import Way

MOST_WORTH, MOST_WORTH_LONGER = 1.1, 2.0
"""The highest worth of a compressed step, in steps of the uncompressed training at its better learning rate;
without and with an outer momentum."""


@dataclass(frozen=True)
class Prospect:
    """A way with the time of its step, as the plan predicts it."""

    way: Way
    step: StepTime

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.step.seconds

    @property
    def most_worth(self) -> float:
        """The highest possible worth of a step."""
        if self.way.is_exact:
            return 1.0
        return MOST_WORTH_LONGER if self.way.has_outer_momentum else MOST_WORTH

    @property
    def least(self) -> float:
        """Seconds for what an uncompressed step learns, with the highest possible worth."""
        return self.seconds / self.most_worth

    @property
    def to_target(self) -> float:
        """Expected seconds for what an uncompressed step learns; see `Way.value`."""
        return self.seconds / self.way.value if self.way.value else math.inf


@dataclass(frozen=True)
class Dropped:
    """A way that is not tried."""

    prospect: Prospect
    why: str
    """The reason, a few words."""


def prospects_of(calibration: Calibration, ways: Sequence[Way], link: Link, workers: int) -> list[Prospect]:
    """Predicts all ways, the fastest first; raises as `planning.plan` does."""
    prospects = [
        Prospect(way, predict(calibration, way.planned, link, workers).step)
        for way in ways
        if is_for(way.planned, link, workers)
    ]
    return sorted(prospects, key=lambda prospect: prospect.seconds)


def half_all_reduce(calibration: Calibration, link: Link, workers: int) -> StepTime:
    """The time of a step by torch's 16-bit all-reduce, the baseline."""
    return predict(calibration, Candidate(HALF, GradientsSync()), link, workers).step


def sift(prospects: Sequence[Prospect]) -> tuple[Prospect, list[Prospect], list[Dropped]]:
    """Separates the fastest exact way, the ways that may be faster to a target, and the rest.

    `prospects` are sorted by their seconds, and at least one is exact; so are the results.
    """
    exact = next(prospect for prospect in prospects if prospect.way.is_exact)
    kept: list[Prospect] = []
    dropped: list[Dropped] = []
    for prospect in prospects:
        if prospect is exact:
            continue
        twin = next((other for other in (exact, *kept) if other.way.learns_like(prospect.way)), None)
        finer = next((other for other in kept if other.way.loses_less_than(prospect.way)), None)
        if not prospect.way.value:
            dropped.append(
                Dropped(prospect, "an adaptive optimizer learns little with a threshold on gradients")
            )
        elif twin is not None:
            dropped.append(Dropped(prospect, f"learns like {twin.way}, which is faster"))
        elif prospect.least >= exact.seconds:
            dropped.append(Dropped(prospect, f"no faster than {exact.way}, which loses nothing"))
        elif finer is not None:
            dropped.append(Dropped(prospect, f"no faster than {finer.way}, which loses less"))
        else:
            kept.append(prospect)
    return exact, kept, dropped


def by_advice(exact: Prospect, prospects: Sequence[Prospect]) -> list[Prospect]:
    """The advised way, then the others by their expected seconds to a target; the exact way is among them."""
    ordered = sorted((exact, *prospects), key=lambda prospect: prospect.to_target)
    first = ordered.pop(
        advised([(prospect.to_target, prospect.way.usual) for prospect in ordered], exact.seconds)
    )
    return [first, *ordered]
