"""Trains with one threshold after the other, until one loses no more than a tolerance."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import Metric

from .auto_specs import by_law, stricter
from .law.fitting import FittedLaw
from .objective import Objective, Outcome

MARGIN = 2.0
"""Where a law's tau lost too much, the next one should lose the tolerance divided by this."""
LEAST_RATIO = 0.01
"""The least of what it may be of the first one."""

Proposals = Generator[RunSpec, float, None]
"""Runs to try one after the other; each is answered with what it lost, in the unit that people see."""


@dataclass(frozen=True)
class Attempt:
    """One of these trainings."""

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
        tolerance: what may be lost against the run without compression, in the unit that people see; None:
            `Metric.margin`.
        metric: what runs are judged by.

    Returns:
        What was trained, in order, and whether none of it failed.
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
    """By how much the last attempt is worse than the first one, in the unit of tables."""
    return metric.lost(done[-1].outcome.value, done[0].outcome.value)


def missing(done: Sequence[Attempt], tolerance: float | None, metric: Metric) -> float:
    """By how much the last attempt is worse than allowed; 0 or less means within the tolerance."""
    return Objective("constraint", metric, tolerance, done[0].outcome).missing(done[-1].outcome)


def one_after_the_other(specs: Sequence[RunSpec]) -> Proposals:
    """Proposes specs, whatever they lose."""
    for spec in specs:  # noqa: UP028 (a list takes no answers)
        yield spec


def lawful(spec: RunSpec, law: FittedLaw, tolerance: float, last: RunSpec | None) -> Proposals:
    """Proposes the threshold that a law gives for a tolerance, and then a lower one, depending on the loss.

    Args:
        spec: the run.
        law: the law, which must apply to the run.
        tolerance: percentage points that may be lost.
        last: proposed if neither was within the tolerance; None for nothing.
    """
    first = by_law(spec, law, tolerance)
    points = yield first
    yield stricter(spec, first, max(tolerance / (MARGIN * points), LEAST_RATIO))
    if last is not None:
        yield last
