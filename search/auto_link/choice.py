"""The way that reaches a target first: seconds a step by the plan, the worth of a step by a probe."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taugrad.platform.spec import RunSpec

from .prospects import Dropped, Prospect
from .worth import Curve, expected_worth, learned, pace_of, worth_of

LEAST_STEPS, LEAST_EXCHANGES, SHARE = 100, 5, 0.05
"""Of a probe, where the time that it may take allows them: steps, exchanges, the share of the run's steps."""
_MOST_SHARE = 0.25
"""Of the run's steps, however short it is."""
FEWEST_STEPS = 8
"""Of a probe, whatever time that takes."""
_LEAST_JUDGED, _LEAST_WITH_MOMENTUM = 3, 5
"""Exchanges of a way whose probe says anything; and where an outer momentum carries the first ones ahead."""
_EVALUATIONS = 8
"""Of a probe, where exchanges are not rarer."""
_AHEAD = 2
"""How much further than the others the reference is trained: a step may be worth more than one of its own."""
_DOUBT = 1.5
"""After half a probe a way is given up where it is this much slower to the target than the best whole one."""
_GAIN = 1.05
"""How much faster than what loses nothing a way must be to be chosen: the worth of a step is an estimate."""
_CLOSE = 1.05
"""How many times the seconds of the fastest one a way may take that is chosen because it exchanges less: what
the plan does not know of, such as workers that are late, makes exchanges longer."""
_PROBES_EACH = 0.375
"""Whole probes for each way that may be probed: about half of them are begun, and half of these go on."""
_DEARER = 1.5
"""Simulated steps that compress take this much longer than those that do not, about."""

Take = Callable[[RunSpec, int, int], Curve]
"""`courses.Courses.take`: trains a run so far, with so many steps between evaluations."""


@dataclass(frozen=True)
class Judged:
    """A way, what a step of it takes and what it is worth.

    Attributes:
        prospect: of the way.
        worth: in steps of the uncompressed training, 0 where nothing was learned.
        steps: of the probe; 0 where it needed none.
        given_up: whether it was too far behind after half of the probe.
    """

    prospect: Prospect
    worth: float
    steps: int = 0
    given_up: bool = False

    @property
    def seconds(self) -> float:
        """For what an uncompressed step learns; infinite where nothing is."""
        return self.prospect.seconds / self.worth if self.worth > 0 else math.inf


@dataclass(frozen=True)
class Choice:
    """What was found.

    Attributes:
        best: what is chosen; perhaps not the fastest by a few percent.
        exact: the fastest way that loses nothing; perhaps the best.
        judged: those and what else was tried, the fastest to the target first, what was given up last.
        dropped: what was not.
        steps: of a whole probe.
        learned: whether the uncompressed training got anywhere in the probe.
    """

    best: Judged
    exact: Judged
    judged: tuple[Judged, ...]
    dropped: tuple[Dropped, ...]
    steps: int
    learned: bool


@dataclass(frozen=True)
class Run:
    """What a probe must know of the run.

    Attributes:
        reference: the run without compression.
        iterations: of the whole run.
        epoch: iterations of an epoch.
        warm_up: iterations in which the learning rate rises.
    """

    reference: RunSpec
    iterations: int
    epoch: int
    warm_up: int = 0


def choose(
    run: Run,
    exact: Prospect,
    prospects: Sequence[Prospect],
    dropped: Sequence[Dropped],
    steps: int,
    take: Take,
    tell: Callable[[str], None] = lambda _: None,
    late: Callable[[], bool] = lambda: False,
) -> Choice:
    """Probes what may win, in two halves.

    The fastest way a step begins. A way that could not win, were each of its steps worth as much as they may
    be, is not tried; one that is far behind after half of its probe does not go on.

    Args:
        run: see there.
        exact: the fastest way that loses nothing, which needs no probe.
        prospects: what may be faster to the target.
        dropped: what cannot, so far.
        steps: of a probe (`probe_steps`).
        take: trains.
        tell: told what is done.
        late: whether the time for probes is over: what was not begun is left out, and halves count as wholes.
    """
    known = Judged(exact, 1.0)
    fitting = [each for each in prospects if steps >= _least(each) * _every(each, run)]
    left_out = list(dropped)
    for each in prospects:
        if each not in fitting:
            left_out.append(Dropped(each, f"the probe has fewer than {_least(each)} of its exchanges"))
    if not fitting:
        return Choice(known, known, (known,), tuple(left_out), 0, learned=True)
    tell(f"{run.reference.compressor} for {_AHEAD * steps} steps, as a reference")
    between = max(1, steps // _EVALUATIONS)
    reference = take(run.reference, _AHEAD * steps // between * between, between)
    if not learned(reference):
        left_out += [Dropped(each, "the reference learned nothing in the probe") for each in fitting]
        return Choice(known, known, (known,), tuple(left_out), steps, learned=False)
    probe = _Probe(run, steps, reference, take, tell, late)
    judged, others = [known], [Dropped(each, "") for each in fitting]
    begun = [known]
    while begun:  # again where what began well, and kept others from being tried, has fallen back
        begun, others = probe.halves(judged, [each.prospect for each in others])
        judged += probe.wholes(judged, begun)
    judged.sort(key=lambda found: (found.given_up, found.seconds))
    return Choice(_chosen(judged, known), known, tuple(judged), (*left_out, *others), steps, learned=True)


def _chosen(judged: Sequence[Judged], known: Judged) -> Judged:
    """What loses nothing, unless another one is clearly faster; of these, what computes most of its time."""
    faster = [found for found in judged if not found.given_up and _GAIN * found.seconds < known.seconds]
    close = [found for found in faster if found.seconds <= _CLOSE * _best(faster)]
    return max(close, key=lambda found: found.prospect.step.utilization, default=known)


@dataclass(frozen=True)
class _Probe:
    """Trains ways in two halves, beside a reference."""

    run: Run
    steps: int
    reference: Curve
    take: Take
    tell: Callable[[str], None]
    late: Callable[[], bool]

    def halves(
        self, judged: Sequence[Judged], prospects: Sequence[Prospect]
    ) -> tuple[list[Judged], list[Dropped]]:
        """Half a probe of each that can still win, what may be fastest first; and the others."""
        half: list[Judged] = []
        others: list[Dropped] = []
        for each in sorted(prospects, key=lambda each: each.least):
            if each.least >= _best([*judged, *half]):
                others.append(Dropped(each, "cannot win even with the highest possible worth"))
            elif len([*judged, *half]) > 1 and self.late():
                others.append(Dropped(each, "there was no time left to probe it"))
            else:
                half.append(self._judge(each, self.steps // 2))
        return half, others

    def wholes(self, judged: Sequence[Judged], halves: Sequence[Judged]) -> list[Judged]:
        """The rest of the probe of those that are not far behind the best whole one, what was best first."""
        done: list[Judged] = []
        for found in sorted(halves, key=lambda found: found.seconds):
            if found.seconds > _DOUBT * _best([*judged, *done]):
                done.append(replace(found, given_up=True))
            elif self.late():
                done.append(found)
            else:
                done.append(self._judge(found.prospect, self.steps))
        return done

    def _judge(self, prospect: Prospect, steps: int) -> Judged:
        """Trains a way about so far: it ends, and is evaluated, after exchanges."""
        every = _every(prospect, self.run)
        between = every * max(1, round(self.steps / _EVALUATIONS / every))
        until = between * max(1, steps // between)
        self.tell(f"{prospect.way} to step {until}")
        curve = self.take(prospect.way.spec, until, between)
        worth, pace = worth_of(curve, self.reference), pace_of(curve, self.reference)
        if worth < min(pace, 1):
            worth = expected_worth(worth, pace, until, self.reference.last)
        elif prospect.way.has_outer_momentum or worth > 1:  # it begins ahead; how it goes on counts as much
            worth = (worth + pace) / 2
        # A training can be ahead for a while without having to take fewer steps to its target.
        return Judged(prospect, min(worth, prospect.most_worth), until)


def _best(judged: Sequence[Judged]) -> float:
    """The least seconds for what an uncompressed step learns."""
    return min(found.seconds for found in judged if not found.given_up)


def _least(prospect: Prospect) -> int:
    """Exchanges that a probe of it must have."""
    return _LEAST_WITH_MOMENTUM if prospect.way.has_outer_momentum else _LEAST_JUDGED


def _every(prospect: Prospect, run: Run) -> int:
    return prospect.way.every or run.epoch


def probe_steps(run: Run, prospects: Sequence[Prospect], step_s: float, seconds: float) -> int:
    """How long a probe is: as long as the run asks for, or as the time allows.

    Args:
        run: see there.
        prospects: what may be probed.
        step_s: what a simulated uncompressed step takes, with its share of evaluations.
        seconds: for all probes together.
    """
    longest = max((_every(each, run) for each in prospects), default=1)
    wanted = max(LEAST_STEPS, LEAST_EXCHANGES * longest, math.ceil(SHARE * run.iterations), 2 * run.warm_up)
    trainings = _AHEAD + _PROBES_EACH * _DEARER * len(prospects)
    affordable = int(seconds / (step_s * trainings))
    return max(FEWEST_STEPS, min(wanted, affordable, int(_MOST_SHARE * run.iterations)))
