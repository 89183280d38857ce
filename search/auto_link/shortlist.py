"""Which ways can win, according to the plan (seconds per step) and what is known about how ways learn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from taugrad.platform.synchronization.config import AllGatherSync

from ..plan.calibrated import HALF, Calibration
from ..plan.candidate import Candidate
from ..plan.link import Link
from ..plan.planning import advised, is_for, predict
from ..plan.step_model import StepTime
from ..ways import Way

MOST_WORTH, MOST_WORTH_LONGER = 1.1, 2.0
"""What a step of a compressed training may be worth, at most, in steps of the uncompressed one at its better
learning rate; and with an outer momentum."""


@dataclass(frozen=True)
class Prospect:
    """A way, and what a step of it takes.

    Attributes:
        way: see there.
        step: as the plan predicts it.
    """

    way: Way
    step: StepTime

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.step.seconds

    @property
    def most_worth(self) -> float:
        """How many uncompressed steps one step may be worth."""
        if self.way.is_exact:
            return 1.0
        return MOST_WORTH_LONGER if self.way.has_outer_momentum else MOST_WORTH

    @property
    def least(self) -> float:
        """Seconds for what an uncompressed step learns, were each step worth as much as it may be."""
        return self.seconds / self.most_worth

    @property
    def to_target(self) -> float:
        """Seconds for what an uncompressed step learns, as far as is known without a probe."""
        return self.seconds / self.way.value if self.way.value else math.inf


@dataclass(frozen=True)
class Dropped:
    """A way that is not tried.

    Attributes:
        prospect: of it.
        why: a few words.
    """

    prospect: Prospect
    why: str


def prospects_of(calibration: Calibration, ways: Sequence[Way], link: Link, workers: int) -> list[Prospect]:
    """Predicts all ways, the fastest first; for errors see `planning.plan`."""
    prospects = [
        Prospect(way, predict(calibration, way.planned, link, workers).step)
        for way in ways
        if is_for(way.planned, link, workers)
    ]
    return sorted(prospects, key=lambda prospect: prospect.seconds)


def half_all_reduce(calibration: Calibration, link: Link, workers: int) -> StepTime:
    """A step by torch's own 16-bit all-reduce, which is what others have to beat."""
    return predict(calibration, Candidate(HALF, AllGatherSync()), link, workers).step


def sift(prospects: Sequence[Prospect]) -> tuple[Prospect, list[Prospect], list[Dropped]]:
    """Leaves out what cannot win.

    Args:
        prospects: the fastest first; one at least is exact.

    Returns:
        The fastest one that loses nothing; those that may be faster to a target, the fastest first; the rest.
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
    """What the plan would choose first, then the others by their expected seconds to a target.

    Args:
        exact: the fastest way that loses nothing; in its place.
        prospects: what may be faster.
    """
    ordered = sorted((exact, *prospects), key=lambda prospect: prospect.to_target)
    first = ordered.pop(
        advised([(prospect.to_target, prospect.way.usual) for prospect in ordered], exact.seconds)
    )
    return [first, *ordered]
