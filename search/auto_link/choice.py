"""The candidate that reaches a target first: seconds a step by the plan, the worth of a step by a probe."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taugrad.platform.spec import RunSpec

from ..plan.candidate import Candidate
from ..plan.candidates import with_rate
from ..plan.planning import advised
from .step_value import Curve, expected_worth, learned, pace_of, worth_of

LEAST_STEPS, LEAST_EXCHANGES, SHARE = 100, 5, 0.05
"""The length of a probe, if its time allows it: steps, exchanges, and the share of the run's steps."""
_MOST_SHARE = 0.25
"""The largest share of the run's steps."""
FEWEST_STEPS = 8
"""The fewest steps of a probe."""
_LEAST_JUDGED, _LEAST_WITH_MOMENTUM = 3, 5
"""The fewest exchanges that a candidate is judged by, without and with an outer momentum."""
_EVALUATIONS = 8
"""Evaluations of a probe, if exchanges are not rarer."""
_AHEAD = 2
"""Steps of the reference over those of a probe: a step may be worth more than one of the reference."""
_DOUBT = 1.5
"""After half a probe a candidate is given up that is this much slower to the target than the best one."""
_GAIN = 1.05
"""How much faster than the exact one a candidate must be: the worth of a step is an estimate."""
_CLOSE = 1.05
"""How much slower than the fastest a candidate may be that is chosen because it exchanges less: the plan does
not know of delays such as late workers, which make exchanges longer."""
MOST_PROBED = 6
"""The largest number of candidates that are probed."""
_PROBES_EACH = 0.375
"""Whole probes per candidate: about half of them are begun, and half of these are continued."""
NO_TIME = "there was no time left to probe it"
_NOTHING_LEARNED = "the probe was too short for the run to learn anything"
_CANNOT_WIN = "cannot win even with the highest possible worth"
_DEARER = 1.5
"""Seconds of simulated steps with compression, over those without."""

Train = Callable[[RunSpec, int, int], Curve]
"""`probe_runs.ProbeRuns.train`: trains a run to a step, with so many steps between evaluations."""


@dataclass(frozen=True)
class Decision:
    """The result of the probes.

    Attributes:
        best: the chosen one; the fastest, but for a few percent.
        exact: the fastest that loses nothing; perhaps the best.
        compared: all that were tried, the fastest to the target first, those that were given up last.
        rejected: the others.
        steps: of a whole probe.
        problem: why nothing could be compared; empty if something was, or nothing had to be.
        rate: the learning rate of the uncompressed training, if two were compared; else 0.
    """

    best: Candidate
    exact: Candidate
    compared: tuple[Candidate, ...]
    rejected: tuple[Candidate, ...]
    steps: int
    problem: str = ""
    rate: float = 0.0


@dataclass(frozen=True)
class Run:
    """The run, as far as probes depend on it.

    Attributes:
        reference: the run without compression.
        iterations: of the whole run.
        epoch: iterations of an epoch.
        warm_up: iterations in which the learning rate rises.
        tuned: the run without compression at the learning rate of local steps, if that is another one.
    """

    reference: RunSpec
    iterations: int
    epoch: int
    warm_up: int = 0
    tuned: RunSpec | None = None


def choose(  # noqa: PLR0911 - one for each reason why nothing can be compared
    run: Run,
    exact: Candidate,
    candidates: Sequence[Candidate],
    rejected: Sequence[Candidate],
    steps: int,
    train: Train,
    notify: Callable[[str], None] = lambda _: None,
    late: Callable[[], bool] = lambda: False,
) -> Decision:
    """Probes the candidates that may win, in two halves.

    The advised one comes first, then the fastest steps. One that cannot win even with the highest possible
    worth is not tried; one that is far behind after half of its probe is given up.

    Args:
        run: the run.
        exact: the fastest candidate that loses nothing, which needs no probe.
        candidates: those that may be faster to the target.
        rejected: the others.
        steps: of a probe (`probe_steps`).
        train: trains a run to a step.
        notify: called with a message before a training.
        late: whether the time for probes is over: nothing more is begun, and halves count as wholes.
    """
    left_out = list(rejected)

    def without_probe(
        problem: str, others: Sequence[Candidate], compared: Sequence[Candidate] = ()
    ) -> Decision:
        best = exact if problem == _NOTHING_LEARNED else by_advice(exact, candidates)[0]
        left_out.extend(replace(other, rejected=problem) for other in others if not other.is_run_of(best))
        tried = [candidate for candidate in compared or [exact] if candidate is not best]
        return Decision(best, exact, (best, *tried), tuple(left_out), steps, problem)

    if not candidates:
        return Decision(exact, exact, (exact,), tuple(left_out), 0)
    fitting = [candidate for candidate in candidates if steps >= _least_steps(candidate, run)]
    if not fitting:
        return without_probe(_too_few(candidates[0]), candidates)
    left_out += [replace(other, rejected=_too_few(other)) for other in candidates if other not in fitting]
    between = max(1, steps // _EVALUATIONS)
    whole = steps // between * between
    best_run, rate = run.reference, 0.0
    notify(f"{run.reference.compressor} for {_AHEAD * steps} steps, as a reference")
    if run.tuned is not None:
        curves = [(train(spec, whole, between), spec) for spec in (run.reference, run.tuned)]
        best_run = min(curves, key=lambda pair: _end(pair[0]))[1]
        rate = best_run.training.optimizer.lr
        exact = replace(exact, spec=with_rate(exact.run, rate))
    reference = train(best_run, _AHEAD * steps // between * between, between)
    if not reference.steps or reference.last < whole:
        return without_probe("the time was over before the reference was trained", fitting)
    if not learned(reference):
        return without_probe(_NOTHING_LEARNED, fitting)
    advised = by_advice(exact, fitting)[0]
    probe = _Probe(run, steps, advised, reference, train, notify, late)
    compared, others, begun = [exact], fitting, [exact]
    while begun:  # again, as a candidate that kept others from being tried may have fallen back
        begun, others = probe.halves(compared, others)
        compared += probe.wholes(compared, begun)
    short = [candidate for candidate in compared if candidate is not exact and not _is_judged(candidate, run)]
    if short and len(short) == len(compared) - 1:
        return without_probe(_too_few(short[0], "in the time that there was"), [*short, *others])
    if len(compared) == 1 and any(other.rejected == NO_TIME for other in others):
        return without_probe(NO_TIME, others)
    others += [replace(candidate, rejected=_too_few(candidate)) for candidate in short]
    compared = sorted(
        (candidate for candidate in compared if candidate not in short),
        key=lambda candidate: (candidate.given_up, candidate.to_target),
    )
    best = _chosen(compared, exact)
    unknown = next(
        (other.rejected for other in others if other.is_run_of(advised) and other.rejected != _CANNOT_WIN), ""
    )
    if best is exact and unknown:  # the advised one was not judged, and the others are slower
        return without_probe(unknown, others, compared)
    return Decision(best, exact, tuple(compared), (*left_out, *others), steps, rate=rate)


def _end(curve: Curve) -> float:
    """The last loss; infinite without one."""
    return curve.losses[-1] if curve.losses and math.isfinite(curve.losses[-1]) else math.inf


def _too_few(candidate: Candidate, when: str = "") -> str:
    return f"the probe has fewer than {_least_exchanges(candidate)} of its exchanges{when and ' ' + when}"


def _is_judged(candidate: Candidate, run: Run) -> bool:
    """Whether its probe has enough exchanges."""
    return candidate.probed >= _least_steps(candidate, run)


def _chosen(compared: Sequence[Candidate], exact: Candidate) -> Candidate:
    """The exact one, unless others are clearly faster; of those the one with the highest utilization."""
    faster = [
        candidate
        for candidate in compared
        if not candidate.given_up and _GAIN * candidate.to_target < exact.to_target
    ]
    close = [candidate for candidate in faster if candidate.to_target <= _CLOSE * _best(faster)]
    return max(close, key=lambda candidate: candidate.step.utilization, default=exact)


@dataclass(frozen=True)
class _Probe:
    """Trains candidates in two halves, beside a reference."""

    run: Run
    steps: int
    advised: Candidate
    reference: Curve
    train: Train
    notify: Callable[[str], None]
    late: Callable[[], bool]

    def halves(
        self, compared: Sequence[Candidate], candidates: Sequence[Candidate]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Trains half a probe of those that can still win, the advised one first; returns the others, too."""
        half: list[Candidate] = []
        others: list[Candidate] = []
        for candidate in sorted(
            candidates,
            key=lambda candidate: (not candidate.is_run_of(self.advised), candidate.least_to_target),
        ):
            if candidate.least_to_target >= _best([*compared, *half]):
                others.append(replace(candidate, rejected=_CANNOT_WIN))
            elif self.late():
                others.append(replace(candidate, rejected=NO_TIME))
            else:
                half.append(self._judge(candidate, self.steps // 2))
        return half, others

    def wholes(self, compared: Sequence[Candidate], halves: Sequence[Candidate]) -> list[Candidate]:
        """Trains the second half for those that are not far behind the best whole one, the best first."""
        done: list[Candidate] = []
        for candidate in sorted(halves, key=lambda candidate: candidate.to_target):
            behind = candidate.to_target > _DOUBT * _best([*compared, *done])
            if behind and _is_judged(candidate, self.run):
                done.append(replace(candidate, given_up=True))
            elif self.late():
                done.append(candidate)
            else:
                done.append(self._judge(candidate, self.steps))
        return done

    def _judge(self, candidate: Candidate, steps: int) -> Candidate:
        """Trains it to the last exchange before a step, and measures its worth, evaluated after exchanges."""
        every = candidate.every or self.run.epoch
        between = every * max(1, round(self.steps / _EVALUATIONS / every))
        until = between * max(1, steps // between)
        self.notify(f"{candidate} to step {until}")
        curve = self.train(candidate.run, until, between)
        if not curve.steps or not curve.last:
            return replace(candidate, worth=0.0, probed=0, rejected="")
        until = curve.last  # less if the time was over
        worth, pace = worth_of(curve, self.reference), pace_of(curve, self.reference)
        if worth < min(pace, 1):
            worth = expected_worth(worth, pace, until, self.reference.last)
        elif candidate.has_outer_momentum or worth > 1:  # it begins ahead; how it goes on counts as much
            worth = (worth + pace) / 2
        return replace(candidate, worth=min(worth, candidate.most_worth), probed=until, rejected="")


def _best(compared: Sequence[Candidate]) -> float:
    """The least seconds for what an uncompressed step learns."""
    return min(candidate.to_target for candidate in compared if not candidate.given_up)


def _least_exchanges(candidate: Candidate) -> int:
    """Exchanges that a probe of it must have."""
    return _LEAST_WITH_MOMENTUM if candidate.has_outer_momentum else _LEAST_JUDGED


def _least_steps(candidate: Candidate, run: Run) -> int:
    """Steps that a probe of it must have."""
    return _least_exchanges(candidate) * (candidate.every or run.epoch)


def probe_steps(run: Run, candidates: Sequence[Candidate], step_s: float, seconds: float) -> int:
    """The steps of a probe: as many as the run needs, or as the time allows.

    Args:
        run: the run.
        candidates: those that may be probed.
        step_s: seconds of a simulated uncompressed step, with its share of evaluations.
        seconds: for all probes together.
    """
    longest = max((candidate.every or run.epoch for candidate in candidates), default=1)
    wanted = max(LEAST_STEPS, LEAST_EXCHANGES * longest, math.ceil(SHARE * run.iterations), 2 * run.warm_up)
    references = _AHEAD + (run.tuned is not None)
    affordable = int(seconds / (step_s * (references + _PROBES_EACH * _DEARER * len(candidates))))
    return max(FEWEST_STEPS, min(wanted, affordable, int(_MOST_SHARE * run.iterations)))


def shortlist(
    run: Run, exact: Candidate, candidates: Sequence[Candidate], step_s: float, seconds: float
) -> tuple[list[Candidate], list[Candidate], int]:
    """The most promising candidates, as many as the time allows to judge; the rejected; a probe's steps.

    For arguments see `choose` and `probe_steps`.
    """
    ordered = [candidate for candidate in by_advice(exact, candidates) if candidate is not exact]
    kept = ordered[:MOST_PROBED]
    rejected = [replace(other, rejected="others are more promising") for other in ordered[MOST_PROBED:]]
    while True:
        steps = probe_steps(run, kept, step_s, seconds)
        unfit = [candidate for candidate in kept if steps < _least_steps(candidate, run)]
        if not unfit or len(kept) == 1:
            return kept, rejected, steps
        kept.remove(unfit[-1])
        rejected.append(replace(unfit[-1], rejected=_too_few(unfit[-1])))


def by_advice(exact: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The advised candidate, then the others by their expected seconds to a target, the exact one too."""
    ordered = sorted((exact, *candidates), key=lambda candidate: candidate.to_target)
    first = advised(ordered, exact.seconds)
    return [first, *(candidate for candidate in ordered if candidate is not first)]
