"""Early stopping on accuracy so far against bytes so far."""

from taugrad.platform.tasks.metric import ACCURACY, LOSS
from taugrad.search.config import SearchConfig
from taugrad.search.objective import TrialOutcome
from taugrad.search.tune import Pruner

GOOD, BAD = TrialOutcome(0.9, 10.0), TrialOutcome(0.5, 100.0)


def pruner(kind, metric=ACCURACY, **settings):
    return Pruner(SearchConfig(pruning=kind, **settings), metric)


def test_halving_keeps_a_third_at_its_rungs_only():
    judge = pruner("asha", grace=1, reduction=3)
    points = [TrialOutcome(0.9 - n / 100, 10.0 + n) for n in range(6)]  # each dominates all that follow
    stopped = [judge.stops(number, 1, point) for number, point in enumerate(points)]
    assert stopped == [False, True, True, True, True, True]
    assert not judge.stops(9, 2, BAD)
    for number, point in enumerate(points):
        assert judge.stops(number, 3, point) == (number > 0)


def test_of_losses_the_lower_goes_on():
    judge = pruner("asha", LOSS)
    assert not judge.stops(0, 1, TrialOutcome(3.1, 10.0))
    assert judge.stops(1, 1, TrialOutcome(3.2, 10.0))
    assert not judge.stops(2, 1, TrialOutcome(3.0, 10.0))
    assert judge.stops(3, 1, TrialOutcome(float("nan"), 11.0))


def test_points_that_no_other_dominates_go_on_whatever_their_number():
    judge = pruner("asha")
    points = [TrialOutcome(0.5 + n / 100, 10.0 + n) for n in range(20)]
    assert not any(judge.stops(number, 1, point) for number, point in enumerate(points))
    assert judge.stops(99, 1, TrialOutcome(0.5, 50.0))


def test_the_median_needs_company():
    judge = pruner("median")
    assert not judge.stops(0, 1, GOOD)
    assert not judge.stops(1, 1, BAD)
    assert not judge.stops(2, 1, BAD)
    assert not judge.stops(3, 1, TrialOutcome(0.6, 50.0))
    assert judge.stops(4, 1, TrialOutcome(0.4, 200.0))


def test_the_grace_and_the_last_epoch_are_never_cut():
    judge = pruner("asha", grace=3)
    assert not judge.stops(0, 3, GOOD, last=True)
    assert not judge.stops(1, 3, BAD, last=True)
    judge = pruner("median", grace=3)
    for epoch in (1, 2, 5):
        for number in range(5):
            judge.stops(number, epoch, GOOD)
        assert not judge.stops(9, epoch, BAD, last=epoch == 5)


def test_earlier_starts_count():
    judge = pruner("asha")
    judge.remember(0, {1: GOOD}, stopped=False)
    judge.remember(1, {1: GOOD}, stopped=False)
    assert judge.stops(2, 1, BAD)
