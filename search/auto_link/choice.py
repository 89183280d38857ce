"""The way that reaches a target first: seconds a step by the plan, the worth of a step by a probe."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taugrad.platform.spec import RunSpec

from ..ways import with_rate
from .shortlist import Dropped, Prospect, by_advice
from .step_value import Curve, expected_worth, learned, pace_of, worth_of

LEAST_STEPS, LEAST_EXCHANGES, SHARE = 100, 5, 0.05
"""The length of a probe, if its time allows it: steps, exchanges, and the share of the run's steps."""
_MOST_SHARE = 0.25
"""The largest share of the run's steps."""
FEWEST_STEPS = 8
"""The fewest steps of a probe."""
_LEAST_JUDGED, _LEAST_WITH_MOMENTUM = 3, 5
"""The fewest exchanges that a way is judged by, without and with an outer momentum."""
_EVALUATIONS = 8
"""Evaluations of a probe, if exchanges are not rarer."""
_AHEAD = 2
"""Steps of the reference over those of a probe: a step may be worth more than one of the reference."""
_DOUBT = 1.5
"""After half a probe a way is given up if it is this much slower to the target than the best whole one."""
_GAIN = 1.05
"""How much faster than the exact way another must be to be chosen: the worth of a step is an estimate."""
_CLOSE = 1.05
"""How much slower than the fastest way one may be that is chosen because it exchanges less: the plan does not
know of delays such as late workers, which make exchanges longer."""
MOST_PROBED = 6
"""The largest number of ways that are probed."""
_PROBES_EACH = 0.375
"""Whole probes per way: about half of the ways are begun, and half of these are continued."""
NO_TIME = "there was no time left to probe it"
_CANNOT_WIN = "cannot win even with the highest possible worth"
_DEARER = 1.5
"""Seconds of simulated steps with compression, over those without."""

Train = Callable[[RunSpec, int, int], Curve]
"""`probe_runs.ProbeRuns.train`: trains a run to a step, with so many steps between evaluations."""


@dataclass(frozen=True)
class Judged:
    """A way with the worth of its step.

    Attributes:
        prospect: the way.
        worth: in steps of the uncompressed training, 0 if nothing was learned.
        steps: of the probe; 0 without one.
        given_up: whether it was too far behind after half of the probe.
    """

    prospect: Prospect
    worth: float
    steps: int = 0
    given_up: bool = False

    @property
    def seconds(self) -> float:
        """Seconds for what an uncompressed step learns; infinite if nothing is learned."""
        return self.prospect.seconds / self.worth if self.worth > 0 else math.inf


@dataclass(frozen=True)
class Decision:
    """The result of the probes.

    Attributes:
        best: the chosen way; the fastest, but for a few percent.
        exact: the fastest way that loses nothing; perhaps the best.
        judged: all ways that were tried, the fastest to the target first, those that were given up last.
        dropped: the other ways.
        steps: of a whole probe.
        learned: whether the loss of the uncompressed training fell in the probe.
        problem: why nothing could be compared; empty if something was, or nothing had to be.
        rate: the learning rate of the uncompressed training, if two were compared; else 0.
    """

    best: Judged
    exact: Judged
    judged: tuple[Judged, ...]
    dropped: tuple[Dropped, ...]
    steps: int
    learned: bool
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
    exact: Prospect,
    prospects: Sequence[Prospect],
    dropped: Sequence[Dropped],
    steps: int,
    train: Train,
    notify: Callable[[str], None] = lambda _: None,
    late: Callable[[], bool] = lambda: False,
) -> Decision:
    """Probes the ways that may win, in two halves.

    The advised way comes first, then the fastest steps. A way that cannot win even with the highest possible
    worth is not tried; one that is far behind after half of its probe is given up.

    Args:
        run: the run.
        exact: the fastest way that loses nothing, which needs no probe.
        prospects: the ways that may be faster to the target.
        dropped: the other ways.
        steps: of a probe (`probe_steps`).
        train: trains a run to a step.
        notify: called with a message before a training.
        late: whether the time for probes is over: no further way is begun, and halves count as wholes.
    """
    known = Judged(exact, 1.0)
    left_out = list(dropped)

    def without_probe(
        problem: str, others: Sequence[Prospect], *, learned: bool = True, judged: Sequence[Judged] = ()
    ) -> Decision:
        first = by_advice(exact, prospects)[0] if learned else exact
        best = known if first is exact else Judged(first, first.way.value)
        left_out.extend(Dropped(other, problem) for other in others if other is not first)
        tried = [candidate for candidate in judged or [known] if candidate is not best]
        return Decision(best, known, (best, *tried), tuple(left_out), steps, learned, problem)

    if not prospects:
        return Decision(known, known, (known,), tuple(left_out), 0, learned=True)
    fitting = [prospect for prospect in prospects if steps >= _least(prospect) * _every(prospect, run)]
    for prospect in prospects:
        if prospect not in fitting and fitting:
            left_out.append(Dropped(prospect, _too_few(prospect)))
    if not fitting:
        return without_probe(_too_few(prospects[0]), prospects)
    between = max(1, steps // _EVALUATIONS)
    whole = steps // between * between
    best_run, rate = run.reference, 0.0
    notify(f"{run.reference.compressor} for {_AHEAD * steps} steps, as a reference")
    if run.tuned is not None:
        curves = [(train(spec, whole, between), spec) for spec in (run.reference, run.tuned)]
        best_run = min(curves, key=lambda pair: _end(pair[0]))[1]
        rate = best_run.training.optimizer.lr
        exact = replace(exact, way=replace(exact.way, spec=with_rate(exact.way.spec, rate)))
        known = Judged(exact, 1.0)
    reference = train(best_run, _AHEAD * steps // between * between, between)
    if not reference.steps or reference.last < whole:
        return without_probe("the time was over before the reference was trained", fitting)
    if not learned(reference):
        return without_probe("the reference learned nothing in the probe", fitting, learned=False)
    advised = by_advice(exact, fitting)[0]
    probe = _Probe(run, steps, advised, reference, train, notify, late)
    judged, others = [known], [Dropped(prospect, "") for prospect in fitting]
    begun = [known]
    while begun:  # again, as a way that kept others from being tried may have fallen back
        begun, others = probe.halves(judged, [other.prospect for other in others])
        judged += probe.wholes(judged, begun)
    short = [judgement for judgement in judged if judgement is not known and not _is_judged(judgement, run)]
    if short and len(short) == len(judged) - 1:
        problem = _too_few(short[0].prospect, "in the time that there was")
        return without_probe(
            problem, [other.prospect for other in short] + [other.prospect for other in others]
        )
    if len(judged) == 1 and any(other.why == NO_TIME for other in others):
        return without_probe(NO_TIME, [other.prospect for other in others])
    others += [Dropped(way.prospect, _too_few(way.prospect)) for way in short]
    judged = sorted(
        (judgement for judgement in judged if judgement not in short),
        key=lambda judgement: (judgement.given_up, judgement.seconds),
    )
    best = _chosen(judged, known)
    unknown = next(
        (other.why for other in others if other.prospect is advised and other.why != _CANNOT_WIN), ""
    )
    if best is known and unknown:  # the advised way was not judged, and the others are slower
        return without_probe(unknown, [other.prospect for other in others], judged=judged)
    return Decision(best, known, tuple(judged), (*left_out, *others), steps, learned=True, rate=rate)


def _end(curve: Curve) -> float:
    """The last loss; infinite without one."""
    return curve.losses[-1] if curve.losses and math.isfinite(curve.losses[-1]) else math.inf


def _too_few(prospect: Prospect, when: str = "") -> str:
    return f"the probe has fewer than {_least(prospect)} of its exchanges{when and ' ' + when}"


def _is_judged(judgement: Judged, run: Run) -> bool:
    """Whether its probe has enough exchanges."""
    return judgement.steps >= _least(judgement.prospect) * _every(judgement.prospect, run)


def _chosen(judged: Sequence[Judged], known: Judged) -> Judged:
    """The exact way, unless others are clearly faster; of those the one with the highest utilization."""
    faster = [
        judgement
        for judgement in judged
        if not judgement.given_up and _GAIN * judgement.seconds < known.seconds
    ]
    close = [judgement for judgement in faster if judgement.seconds <= _CLOSE * _best(faster)]
    return max(close, key=lambda judgement: judgement.prospect.step.utilization, default=known)


@dataclass(frozen=True)
class _Probe:
    """Trains ways in two halves, beside a reference."""

    run: Run
    steps: int
    advised: Prospect
    reference: Curve
    train: Train
    notify: Callable[[str], None]
    late: Callable[[], bool]

    def halves(
        self, judged: Sequence[Judged], prospects: Sequence[Prospect]
    ) -> tuple[list[Judged], list[Dropped]]:
        """Trains half a probe of ways that can still win, the advised one first; returns the others, too."""
        half: list[Judged] = []
        others: list[Dropped] = []
        for prospect in sorted(
            prospects, key=lambda prospect: (prospect is not self.advised, prospect.least)
        ):
            if prospect.least >= _best([*judged, *half]):
                others.append(Dropped(prospect, _CANNOT_WIN))
            elif self.late():
                others.append(Dropped(prospect, NO_TIME))
            else:
                half.append(self._judge(prospect, self.steps // 2))
        return half, others

    def wholes(self, judged: Sequence[Judged], halves: Sequence[Judged]) -> list[Judged]:
        """Trains the second half for the ways that are not far behind the best whole one, the best first."""
        done: list[Judged] = []
        for judgement in sorted(halves, key=lambda judgement: judgement.seconds):
            behind = judgement.seconds > _DOUBT * _best([*judged, *done])
            if behind and _is_judged(judgement, self.run):
                done.append(replace(judgement, given_up=True))
            elif self.late():
                done.append(judgement)
            else:
                done.append(self._judge(judgement.prospect, self.steps))
        return done

    def _judge(self, prospect: Prospect, steps: int) -> Judged:
        """Trains a way to the last exchange before a step; it is evaluated after exchanges."""
        every = _every(prospect, self.run)
        between = every * max(1, round(self.steps / _EVALUATIONS / every))
        until = between * max(1, steps // between)
        self.notify(f"{prospect.way} to step {until}")
        curve = self.train(prospect.way.spec, until, between)
        if not curve.steps or not curve.last:
            return Judged(prospect, 0.0)
        until = curve.last  # less if the time was over
        worth, pace = worth_of(curve, self.reference), pace_of(curve, self.reference)
        if worth < min(pace, 1):
            worth = expected_worth(worth, pace, until, self.reference.last)
        elif prospect.way.has_outer_momentum or worth > 1:  # it begins ahead; how it goes on counts as much
            worth = (worth + pace) / 2
        return Judged(prospect, min(worth, prospect.most_worth), until)


def _best(judged: Sequence[Judged]) -> float:
    """The least seconds for what an uncompressed step learns."""
    return min(judgement.seconds for judgement in judged if not judgement.given_up)


def _least(prospect: Prospect) -> int:
    """Exchanges that a probe of it must have."""
    return _LEAST_WITH_MOMENTUM if prospect.way.has_outer_momentum else _LEAST_JUDGED


def _every(prospect: Prospect, run: Run) -> int:
    return prospect.way.every or run.epoch


def probe_steps(run: Run, prospects: Sequence[Prospect], step_s: float, seconds: float) -> int:
    """The steps of a probe: as many as the run needs, or as the time allows.

    Args:
        run: the run.
        prospects: the ways that may be probed.
        step_s: seconds of a simulated uncompressed step, with its share of evaluations.
        seconds: for all probes together.
    """
    longest = max((_every(prospect, run) for prospect in prospects), default=1)
    wanted = max(LEAST_STEPS, LEAST_EXCHANGES * longest, math.ceil(SHARE * run.iterations), 2 * run.warm_up)
    references = _AHEAD + (run.tuned is not None)
    affordable = int(seconds / (step_s * (references + _PROBES_EACH * _DEARER * len(prospects))))
    return max(FEWEST_STEPS, min(wanted, affordable, int(_MOST_SHARE * run.iterations)))


def shortlist(
    run: Run, exact: Prospect, prospects: Sequence[Prospect], step_s: float, seconds: float
) -> tuple[list[Prospect], list[Dropped], int]:
    """The most promising ways, as many as the time allows to judge; the others; and the steps of a probe.

    For arguments see `choose` and `probe_steps`.
    """
    ordered = [prospect for prospect in by_advice(exact, prospects) if prospect is not exact]
    kept, dropped = ordered[:MOST_PROBED], list[Dropped]()
    dropped += [Dropped(prospect, "others are more promising") for prospect in ordered[MOST_PROBED:]]
    while True:
        steps = probe_steps(run, kept, step_s, seconds)
        unfit = [prospect for prospect in kept if steps < _least(prospect) * _every(prospect, run)]
        if not unfit or len(kept) == 1:
            return kept, dropped, steps
        kept.remove(unfit[-1])
        dropped.append(Dropped(unfit[-1], _too_few(unfit[-1])))
