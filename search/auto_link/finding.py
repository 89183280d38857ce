"""Finds the way to train a run over a link."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from taugrad.platform.spec import RunSpec

from ..plan.calibrated import HALF, Calibration
from ..plan.calibration import OthersWork, busy_now
from ..plan.command import calibrated
from ..plan.link import Link
from ..plan.step_model import StepTime
from ..ways import left_out, tuned_references, ways_of
from .choice import Decision, Run, Take, choose, shortlist
from .shortlist import half_all_reduce, prospects_of, sift

if TYPE_CHECKING:
    from .probe_runs import ProbeRuns

_TIMED_STEPS = 5
"""By which it is found how long a probe may be, after as many."""


@dataclass(frozen=True)
class Found:
    """A choice, and what it was made for."""

    choice: Decision
    link: Link
    half: StepTime
    """By torch's own 16-bit all-reduce."""


def find(
    spec: RunSpec,
    source: str,
    link: Link,
    probe_seconds: float,
    probe_runs: "ProbeRuns",
    tell: Callable[[str], None],
    *,
    calibration: Path | None = None,
    sharing: int = 1,
    clock: Callable[[], float] = monotonic,
) -> Found:
    """Chooses the way to train a run over a link.

    Args:
        spec: the run; `workers.count` is at least 2.
        source: its file's name, for messages.
        link: of every worker.
        probe_seconds: for all probes together; no step of a training begins later.
        probe_runs: trains beginnings of it.
        tell: told what is done.
        calibration: a file instead of measuring; ways that it does not know are left out.
        sharing: how many workers share this machine.
        clock: tells the seconds.

    Raises:
        SpecError: the model cannot be measured.
    """
    ways = ways_of(spec)
    if (why := left_out(spec)) is not None:
        tell(f"not tried: {why}")
    lines = sorted({way.planned.method for way in ways})
    if calibration is not None:
        known = calibrated(spec, source, ["none", HALF], tell, given=calibration)
        ways = [way for way in ways if way.planned.method in known.methods]
    else:
        known = calibrated(spec, source, lines, tell, sharing=sharing)
    workers = spec.workers.count
    exact, prospects, dropped = sift(prospects_of(known, ways, link, workers))
    run, steps, until = run_of(spec, known), 0, math.inf

    def late() -> bool:
        return clock() >= until

    take, busy, others = partial(probe_runs.take, late=late), "", OthersWork()
    if prospects:
        if busy := busy_now():
            tell(busy)
            import torch  # noqa: PLC0415 - takes seconds

            torch.set_num_threads(1)  # several wait for the one that others interrupt: ten times as long
        until = clock() + probe_seconds
        tell(f"probing for at most {probe_seconds:g} s, after which what is not trained is left out")
        step_s = _step_seconds(probe_runs, run, take)
        prospects, more, steps = shortlist(run, exact, prospects, step_s, probe_seconds)
        dropped += more
    choice = choose(run, exact, prospects, dropped, steps, take, tell, late=late)
    if prospects and not busy and (busy := others.warning()):
        tell(busy)
    return Found(choice, link, half_all_reduce(known, link, workers))


def _step_seconds(probe_runs: "ProbeRuns", run: Run, take: Take | None = None) -> float:
    """What a simulated uncompressed step takes; infinite where the time was over before.

    The first few do not count: they load what they need.
    """
    before = seconds = 0.0
    for until in (_TIMED_STEPS, 2 * _TIMED_STEPS):
        if until <= max(_TIMED_STEPS, run.iterations):
            (take or probe_runs.take)(run.reference, until, _TIMED_STEPS)
            before, seconds = seconds, until * probe_runs.step_seconds(run.reference)
    return (seconds - before) / _TIMED_STEPS if math.isfinite(seconds) else math.inf


def run_of(spec: RunSpec, calibration: Calibration) -> Run:
    """What a probe must know of a run."""
    training, epoch = spec.training, calibration.steps_an_epoch
    warm_up = training.warmup.iterations or math.ceil(training.warmup.epochs * epoch)
    reference, *tuned = tuned_references(spec)
    iterations = training.iterations or training.epochs * epoch
    return Run(reference, iterations, epoch, warm_up, tuned[0] if tuned else None)
