"""Trains with one threshold after the other, until one loses no more than a tolerance."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import Metric

from .auto_specs import at_tolerance, stricter
from .objective import Objective, Outcome

MARGIN = 2.0
"""If the first tau lost too much, the next one should lose the tolerance divided by this."""
LEAST_RATIO = 0.01
"""The smallest ratio of the second tau to the first."""

Proposals = Generator[RunSpec, float, None]
"""Yields runs to try; is sent the loss of each, in the metric's displayed unit."""


@dataclass(frozen=True)
class Attempt:
    """A training with its result."""

    spec: RunSpec
    outcome: Outcome


def attempts(
    train: Callable[[RunSpec], Outcome | None],
    bare: RunSpec,
    further: Proposals,
    tolerance: float | None,
    metric: Metric,
) -> tuple[list[Attempt], bool]:
    """Trains without compression, then with one threshold after the other until one is within the tolerance.

    Args:
        train: trains a run; returns None if that failed, which ends the attempts.
        bare: the run without compression.
        further: runs with thresholds.
        tolerance: the loss that is allowed, in the metric's displayed unit; None: `Metric.margin`.
        metric: of the runs.

    Returns:
        The trainings, in order, and whether none of them failed.
    """
    done: list[Attempt] = []
    proposed: RunSpec | None = bare
    while proposed is not None:
        outcome = train(proposed)
        if outcome is None:
            return done, False
        done.append(Attempt(proposed, outcome))
        if len(done) == 1:
            proposed = next(further, None)
        elif missing(done, tolerance, metric) <= 0:
            break
        else:
            try:
                proposed = further.send(lost(done, metric))
            except StopIteration:
                break
    return done, True


def lost(done: Sequence[Attempt], metric: Metric) -> float:
    """The loss of the last attempt against the first one, in the metric's displayed unit."""
    return metric.lost(done[-1].outcome.value, done[0].outcome.value)


def missing(done: Sequence[Attempt], tolerance: float | None, metric: Metric) -> float:
    """The loss of the last attempt beyond the tolerance; 0 or less if it is within."""
    return Objective("constraint", metric, tolerance, done[0].outcome).missing(done[-1].outcome)


def one_after_the_other(specs: Sequence[RunSpec]) -> Proposals:
    """Proposes specs in order."""
    for spec in specs:  # noqa: UP028 (a list takes no answers)
        yield spec


def tightening(spec: RunSpec, tolerance: float, last: RunSpec) -> Proposals:
    """Proposes a tau for a tolerance in percentage points, a smaller one by what that lost, and `last`."""
    first = at_tolerance(spec, tolerance)
    points = yield first
    yield stricter(spec, first, max(tolerance / (MARGIN * points), LEAST_RATIO))
    yield last
