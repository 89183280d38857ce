"""The choice of a way to train over a link, against what a formula by hand says."""

import math
from dataclasses import replace

import numpy as np
import pytest
from calibrations import calibration, work
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taugrad.compressors import Outer
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import GradientsSync, WeightsSync
from taugrad.search.auto_link import words
from taugrad.search.auto_link.choice import Run, by_advice, choose, shortlist
from taugrad.search.auto_link.finding import half_all_reduce, sift
from taugrad.search.auto_link.step_value import Curve, expected_worth, worth_of
from taugrad.search.plan.calibrated import HALF
from taugrad.search.plan.candidate import MOST_WORTH, MOST_WORTH_WITH_MOMENTUM, Candidate
from taugrad.search.plan.candidates import candidates_of, tuned_references
from taugrad.search.plan.link import Link
from taugrad.search.plan.planning import predicted
from taugrad.search.plan.step_model import StepTime

EXACT = "exact"

STEPS = 120
SLOW, FAST = Link(rate=8e6, headers=0.0), Link(rate=8e12, headers=0.0)


def spec(**fields) -> RunSpec:
    optimizer = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
    training = {"iterations": 2400, "batch_per_worker": 4, "optimizer": optimizer}
    return RunSpec.model_validate({"training": training, "workers": {"count": 4}} | fields)


ADAMW = {"training": {"iterations": 2400, "batch_per_worker": 4, "optimizer": {"kind": "adamw", "lr": 0.001}}}
RUN = Run(candidates_of(spec())[0].spec, iterations=2400, epoch=100)


def loss_after(steps: float) -> float:
    """Of the uncompressed training; falls ever slower."""
    return 3 / (1 + steps / 40)


class Trainings:
    """Stands for trainings whose steps have these worths, or bring them to a place on the reference."""

    def __init__(self, worths):
        self.worths, self.asked = worths, []

    def take(self, one: RunSpec, steps: int, every: int) -> Curve:
        self.asked.append((one.fingerprint(), steps))
        worth = self.worths.get(one.fingerprint(), 1.0)
        done = tuple(range(0, steps + 1, every))
        places = [worth(run) if callable(worth) else worth * run for run in done]
        return Curve(done, tuple(map(loss_after, places)))


def timed(candidate: Candidate, seconds: float) -> Candidate:
    return replace(candidate, predicted=StepTime(seconds, min(seconds, 0.01), 0.0, 0.0))


# What a step is worth


@settings(max_examples=100)
@given(
    falls=st.lists(st.floats(1e-3, 1.0), min_size=8, max_size=8),
    worth=st.sampled_from([0.2, 0.25, 0.5, 1, 2, 5]),
    evaluations=st.integers(2, 8),
)
def test_a_step_is_worth_what_brings_it_along_the_reference(falls, worth, evaluations):
    """The reference's losses, stretched: whatever its shape, the stretch is what is found."""
    losses = [sum(falls[i:]) for i in range(len(falls) + 1)]
    reference = Curve(tuple(10 * i for i in range(len(losses))), tuple(losses))
    done = tuple(round(10 * i / worth) for i in range(evaluations + 1))
    assert worth_of(Curve(done, reference.losses[: len(done)]), reference) == pytest.approx(worth)


@given(late=st.integers(0, 99), pace=st.floats(0.2, 1.0), until=st.integers(100, 1000))
def test_what_began_late_is_worth_what_it_comes_to(late, pace, until):
    """Nothing for some steps, then straight on: its steps until it is where the reference is at `until`."""
    so_far = pace * (100 - late) / 100
    assert expected_worth(so_far, pace, 100, until) == pytest.approx(until / (late + until / pace))
    assert expected_worth(so_far, so_far / 2, 100, until) == so_far
    assert expected_worth(so_far, 1.5, 100, until) == expected_worth(so_far, 1.0, 100, until)
    assert expected_worth(1 + so_far, 2.5, 100, until) == 1 + so_far


# What is compared


def test_ways_fit_the_optimizer():
    sgd = {str(way): way for way in candidates_of(spec())}
    adamw = {str(way): way for way in candidates_of(spec(**ADAMW))}
    each_step = "strom(tau=density(target=0.01), momentum=0.9) | golomb_rice"
    assert sgd[each_step].spec.training.optimizer.momentum == 0.0  # it comes before the threshold
    assert not [name for name in adamw if "density" in name and "every" not in name]
    local = "strom(tau=density(target=0.1, every=1)) | golomb_rice (weights every 4 steps, allgather)"
    assert sgd[local].spec.training.optimizer.lr == 0.1
    assert adamw[local].spec.training.optimizer.lr == pytest.approx(0.001 * 2)  # the root of 4 workers
    for one in (sgd[local], adamw[local]):
        assert one.spec.sync == WeightsSync(every=4, unsent=0.25)
    exact = {str(way) for way in sgd.values() if way.is_exact}
    assert exact == {"none", "fp16", "fp16 (sharded)"}
    assert all(way.spec.training.iterations == 2400 for way in [*sgd.values(), *adamw.values()])


def test_the_specs_own_way_is_among_them_and_simulation_is_no_way():
    base = spec(
        compressor="wgt(0.5)", sync={"mode": "simulated", "of": {"mode": "gradients", "pattern": "sharded"}}
    )
    (alone,) = [way for way in candidates_of(base) if not way.family]
    assert (str(alone.spec.compressor), alone.sync) == ("wgt(tau=0.5)", GradientsSync(pattern="sharded"))
    assert not [way for way in candidates_of(spec()) if not way.family]  # it is the all-reduce
    assert not [way for way in candidates_of(spec(compressor="powersgd(4)")) if not way.family]


# What the plan alone rules out


def made(family, degree, seconds, sync=None):
    tree = spec().model_dump(mode="json") | {"sync": (sync or GradientsSync()).model_dump(mode="json")}
    run = RunSpec.model_validate(tree)
    candidate = Candidate(str(run.compressor), run.sync, family=family, degree=degree, spec=run)
    return timed(candidate, seconds)


def test_what_cannot_win_is_not_tried():
    none, sharded = made(EXACT, (), 0.5), made(EXACT, (), 0.4, GradientsSync(pattern="sharded"))
    dense, sparse = made("strom", (10.0,), 0.1), made("strom", (100.0,), 0.1001)
    sparser = made("strom", (1000.0,), 0.05)
    slow = made("linear", (4.0,), 0.4 * MOST_WORTH + 0.001)
    outer = WeightsSync(every=4, outer=Outer(momentum=0.9))
    slow_local = made("diloco", (4.0, 10.0), 0.4 * MOST_WORTH_WITH_MOMENTUM - 0.001, outer)
    everything = sorted([none, sharded, dense, sparse, sparser, slow, slow_local], key=lambda p: p.seconds)
    exact, kept, dropped = sift(everything)
    assert exact is sharded
    assert kept == [sparser, dense, slow_local]  # with an outer momentum a step may be worth more
    assert [replace(candidate, rejected="") for candidate in dropped] == [sparse, slow, none]


# The choice


SENT = {
    "fp16": 2e6,
    "strom(tau=density(target=0.1), momentum=0.9) | golomb_rice": 8e4,
    "strom(tau=density(target=0.01), momentum=0.9) | golomb_rice": 1e4,
    "strom(tau=density(target=0.001), momentum=0.9) | golomb_rice": 2e3,
}
"""Bytes of messages; others have 1.5 MB."""
LINES = {way.method for fields in ({}, ADAMW) for way in candidates_of(spec(**fields))}
EVERY_ELEMENT = {"none": work(4e6, all_reduces=1), HALF: work(2e6, all_reduces=1, half=True)}
METHODS = {line: work(SENT.get(line, 1.5e6)) for line in LINES} | EVERY_ELEMENT
CALIBRATION = calibration(METHODS, 1_000_000, 0.01, batch=4, steps_an_epoch=100)
"""10 ms of computing, and a million parameters."""


def compared(link, worths, run=RUN, one=None):
    ways = candidates_of(one or spec())
    exact, kept, dropped = sift(predicted(CALIBRATION, ways, link, 4))
    trainings = Trainings(
        {way.spec.fingerprint(): worth for way in ways for n, worth in worths.items() if n in str(way)}
    )
    return choose(run, exact, kept, dropped, STEPS, trainings.take), trainings


def test_on_a_slow_link_the_sparse_way_with_the_least_seconds_for_its_worth_is_chosen():
    worths = {"strom(tau=density(target=0.1), ": 0.95, "strom(tau=density(target=0.01), ": 0.7}
    worths |= {"strom(tau=density(target=0.001), ": 0.2, "weights": 0.01, "wgt": 0.9, "linear": 0.9}
    choice, _ = compared(SLOW, worths)
    # 3 messages at a megabyte a second, beside 10 ms of computing
    by_hand = {
        "0.1": (0.01 + 3 * 8e4 / 1e6) / 0.95,
        "0.01": (0.01 + 3 * 1e4 / 1e6) / 0.7,
        "0.001": (0.01 + 3 * 2e3 / 1e6) / 0.2,
    }
    assert min(by_hand, key=by_hand.__getitem__) == "0.01"
    assert str(choice.best) == "strom(tau=density(target=0.01), momentum=0.9) | golomb_rice"
    assert choice.best.to_target == pytest.approx(by_hand["0.01"], rel=0.05)
    assert choice.best.worth == pytest.approx(0.7, rel=0.05)
    half = half_all_reduce(CALIBRATION, SLOW, 4)
    said = words.reason(choice, SLOW, 4, half)
    # 16 bits: 2 * 3/4 of 2 MB at a megabyte a second
    times = (0.01 + 3.0) / by_hand["0.01"]
    assert half.seconds == pytest.approx(3.01, rel=0.01)
    assert words.times_faster(choice.best, half) == pytest.approx(times, rel=0.05)
    assert "strom(tau=density(target=0.01)" in said
    (marked,) = [row for row in words.table_of(choice, half).rows if row[-1] == "chosen"]
    assert marked[0] == str(choice.best)


@pytest.mark.parametrize(
    ("worth", "why"),
    [
        (0.8, "ways that send less take longer to the target: 1.2"),
        (1.03, "which is too little for a probe to be sure of"),
    ],
)
@pytest.mark.parametrize("fields", [{}, ADAMW])
def test_on_a_fast_link_the_all_reduce_is_chosen(fields, worth, why):
    choice, _ = compared(
        FAST, dict.fromkeys(("strom", "wgt", "linear", "chunked"), worth), one=spec(**fields)
    )
    assert choice.best is choice.exact
    assert choice.best.is_exact
    half = half_all_reduce(CALIBRATION, FAST, 4)
    assert why in words.reason(choice, FAST, 4, half)


@pytest.mark.parametrize("worth", [0.0, math.nan])
def test_what_learns_nothing_is_never_chosen_however_fast_it_is(worth):
    choice, _ = compared(SLOW, dict.fromkeys(("strom", "wgt", "linear", "chunked"), worth))
    assert choice.best is choice.exact
    assert all(judgement.worth == 0 for judgement in choice.compared if judgement is not choice.exact)
    half = half_all_reduce(CALIBRATION, SLOW, 4)
    assert "learned nothing" in words.reason(choice, SLOW, 4, half)
    assert {row[4] for row in words.table_of(choice, half).rows if "strom" in row[0]} == {"0"}


def test_a_run_that_learns_nothing_in_the_probe_is_not_judged_by_it():
    exact, kept, dropped = sift(predicted(CALIBRATION, candidates_of(spec()), SLOW, 4))
    choice = choose(RUN, exact, kept, dropped, STEPS, lambda _, steps, __: Curve((0, steps), (3.0, 3.0)))
    assert choice.best is choice.exact
    assert "too short for the run to learn anything" in words.reason(choice, SLOW, 4, exact.step)


OTHERS = [way for way in candidates_of(spec()) if way.every <= 10 and not way.is_exact]
SOME = [candidates_of(spec())[0], *OTHERS]
"""The all-reduce, and what loses something."""


MOST_OF = [MOST_WORTH_WITH_MOMENTUM if way.has_outer_momentum else MOST_WORTH for way in OTHERS]
LEAST_ESTIMATE, MOST_ESTIMATE = 0.995, 1.065
"""Of a worth of 0.05 or more, in parts of it: losses between two evaluations are interpolated."""


ONE_OF_A_KIND = {(way.every, way.has_outer_momentum): way for way in OTHERS}.values()


@pytest.mark.parametrize("way", ONE_OF_A_KIND, ids=str)
def test_the_worth_of_a_step_is_estimated_within_a_few_percent(way):
    exact, fast = timed(SOME[0], 100), timed(way, 0.01)
    for worth in np.geomspace(0.05, fast.most_worth, 100).tolist():
        trainings = Trainings({way.spec.fingerprint(): worth})
        (result, _) = choose(RUN, exact, [fast], [], STEPS, trainings.take).compared
        assert LEAST_ESTIMATE * worth <= result.worth <= MOST_ESTIMATE * worth


@settings(max_examples=60)
@given(
    seconds=st.lists(st.floats(0.01, 10), min_size=len(SOME), max_size=len(SOME)),
    worths=st.tuples(*(st.floats(0.05, most) for most in MOST_OF)),
)
@example(  # a step that is worth 0.05 was taken for 0.061: that way was chosen, which is 1.27 times as long
    seconds=[10, 1, 0.0635, *[10] * (len(SOME) - 3)], worths=(1, 0.05, *[0.1] * (len(OTHERS) - 2))
)
def test_the_two_halves_of_the_probe_never_lose_the_fastest(seconds, worths):
    """Any seconds, any worths up to the most: what is chosen is the best of all, or what loses nothing if
    nothing is clearly better, but for a few percent.

    The way with the least estimated seconds to the target may yield to one that is estimated to take 5%
    longer (`_GAIN`, `_CLOSE`); the worths of both are estimates. What is given up after half of the probe is
    further behind than all this.
    """
    by_way = {way.spec.fingerprint(): worth for way, worth in zip(OTHERS, worths, strict=True)}
    exact, *others = (timed(way, s) for way, s in zip(SOME, seconds, strict=True))
    choice = choose(RUN, exact, others, [], STEPS, Trainings(by_way).take)
    true = {
        str(candidate): candidate.seconds / by_way.get(candidate.spec.fingerprint(), 1.0)
        for candidate in (exact, *others)
    }
    best = min(true.values())
    chosen = true[str(choice.best)]
    assert chosen <= 1.05 * MOST_ESTIMATE / LEAST_ESTIMATE * best  # 1.124
    if best > exact.seconds:
        assert choice.best is choice.exact


class Slowed(Trainings):
    """A step takes as long as it takes, and what comes after the budget is not trained."""

    def __init__(self, step_s, budget, worths=None):
        super().__init__(worths or {})
        self.step_s, self.budget, self.now = step_s, budget, 0.0
        self.done: dict[str, int] = {}

    def late(self) -> bool:
        return self.now >= self.budget

    def take(self, one, steps, every):
        done, name = 0, one.fingerprint()
        for step in range(self.done.get(name, 0), steps):
            if self.late():
                break
            self.now += self.step_s
            done = step + 1
        self.done[name] = max(done, self.done.get(name, 0))
        curve = super().take(one, steps, every)
        count = sum(step <= self.done[name] for step in curve.steps) if self.done[name] else 0
        return Curve(curve.steps[:count], curve.losses[:count])


@pytest.mark.parametrize("slower", [1, 3, 10, 100, 1e4])
def test_the_probe_ends_when_its_seconds_are_spent_whatever_the_machine_does(slower):
    """Planned for 0.01 s a step; then something else needs the machine. Nothing is judged by too little."""
    exact, kept, dropped = sift(predicted(CALIBRATION, candidates_of(spec()), SLOW, 4))
    kept, more, steps = shortlist(RUN, exact, kept, 0.01, 20)
    trainings = Slowed(0.01 * slower, 20)
    choice = choose(RUN, exact, kept, [*dropped, *more], steps, trainings.take, late=trainings.late)
    assert trainings.now <= 20 + trainings.step_s
    probed = [judgement for judgement in choice.compared if judgement.probed]
    for result in probed:
        least = 5 if result.has_outer_momentum else 3
        assert result.probed >= least * result.every
        assert result.probed <= trainings.done[result.spec.fingerprint()]
    said = words.reason(choice, SLOW, 4, exact.step)
    assert bool(probed) == (slower <= 3) == ("could not compare: raise --probe-seconds" not in said)
    everything = [*choice.compared, *choice.rejected]
    assert len(everything) == len({candidate.run.fingerprint() for candidate in everything})


@pytest.mark.parametrize("fields", [{}, ADAMW])
@pytest.mark.parametrize("worth", [0.001, 0.9])
def test_what_is_advised_yields_to_what_loses_nothing_only_where_the_probe_has_judged_it(fields, worth):
    """However early the time is over."""
    exact, kept, dropped = sift(predicted(CALIBRATION, candidates_of(spec(**fields)), SLOW, 4))
    first = by_advice(exact, kept)[0]
    assert first is not exact
    kept, more, steps = shortlist(RUN, exact, kept, 0.01, 20)
    everything = {state.spec.fingerprint(): worth for state in kept}
    problems = set()
    for slower in np.geomspace(1, 30, 60).tolist():
        trainings = Slowed(0.01 * slower, 20, everything)
        choice = choose(RUN, exact, kept, [*dropped, *more], steps, trainings.take, late=trainings.late)
        known = [
            judgement for judgement in choice.compared if judgement.is_run_of(first) and judgement.probed
        ]
        if not known:
            assert choice.problem
            assert choice.best.is_run_of(first)
        problems.add(choice.problem)
    assert "" in problems
    assert len(problems) > 1


@pytest.mark.parametrize("better", ["own", "tuned"])
def test_the_reference_has_the_choice_between_both_learning_rates(better):
    """A way at twice the rate is compared with the training without compression at its better rate."""
    one = spec(**ADAMW)
    reference, tuned = tuned_references(one)
    assert reference.training.optimizer.lr == 0.001
    assert tuned.training.optimizer.lr == pytest.approx(0.002)  # the root of 4 workers
    run = Run(reference, 2400, 100, tuned=tuned)
    exact, kept, dropped = sift(predicted(CALIBRATION, candidates_of(one), SLOW, 4))
    usual = next(candidate for candidate in kept if candidate.usual)
    gain = 1.5 if better == "tuned" else 0.8
    worths = {tuned.fingerprint(): gain, usual.spec.fingerprint(): 0.9 * max(gain, 1)}
    choice = choose(run, exact, [usual], dropped, STEPS, Trainings(worths).take)
    (judgement,) = [judgement for judgement in choice.compared if judgement.is_run_of(usual)]
    assert judgement.worth == pytest.approx(0.9, rel=0.05)  # and not 1.35
    rate = 0.002 if better == "tuned" else 0.001
    assert choice.exact.spec.training.optimizer.lr == pytest.approx(rate)
    assert f"had lr {rate:g}" in words.reason(choice, SLOW, 4, exact.step)
    # A spec of local steps has their rate; that of steps with the mean gradient is smaller.
    local = RunSpec.model_validate(usual.spec.model_dump(mode="json"))
    assert [reference.training.optimizer.lr for reference in tuned_references(local)] == pytest.approx(
        [0.002, 0.001]
    )
    assert len(tuned_references(spec())) == 1


def test_what_is_far_behind_after_half_a_probe_does_not_go_on():
    worths = {"strom(tau=density(target=0.01), ": 0.7, "strom(tau=density(target=0.001), ": 0.1}
    choice, trainings = compared(SLOW, worths | {"weights": 0.01})
    longest = {}
    for fingerprint, steps in trainings.asked:
        longest[fingerprint] = max(steps, longest.get(fingerprint, 0))
    given_up = [judgement for judgement in choice.compared if judgement.given_up]
    assert given_up
    for result in given_up:
        assert longest[result.spec.fingerprint()] <= STEPS / 2
    assert longest[choice.best.spec.fingerprint()] == STEPS
