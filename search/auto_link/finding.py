"""Chooses how to train a run over a link: plan, probes, decision."""

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
from ..plan.candidates import candidates_of, left_out, tuned_references
from ..plan.link import Link
from ..plan.run_plan import calibrated
from ..plan.step_model import StepTime
from .choice import Decision, Run, Train, choose, shortlist
from .shortlist import half_all_reduce, predicted, sift

if TYPE_CHECKING:
    from .probe_runs import ProbeRuns

_TIMED_STEPS = 5
"""Steps, after as many warm-up steps, that are timed to find how long a probe may be."""


@dataclass(frozen=True)
class Finding:
    """A decision, with the link that it is for."""

    decision: Decision
    link: Link
    half: StepTime
    """A step by torch's 16-bit all-reduce."""


def find(
    spec: RunSpec,
    source: str,
    link: Link,
    probe_seconds: float,
    probe_runs: "ProbeRuns",
    notify: Callable[[str], None],
    *,
    calibration: Path | None = None,
    sharing: int = 1,
    clock: Callable[[], float] = monotonic,
) -> Finding:
    """Chooses how to train a run over a link.

    Args:
        spec: the run; `workers.count` is at least 2.
        source: its file's name, for messages.
        link: of every worker.
        probe_seconds: for all probes together; no step of a training begins later.
        probe_runs: trains its beginnings.
        notify: called with messages.
        calibration: a file instead of measuring; candidates with other methods are left out.
        sharing: how many workers share this machine.
        clock: returns seconds.

    Raises:
        SpecError: the model cannot be measured.
    """
    candidates = candidates_of(spec)
    if (why := left_out(spec)) is not None:
        notify(f"not tried: {why}")
    lines = sorted({candidate.method for candidate in candidates})
    if calibration is not None:
        known = calibrated(spec, source, ["none", HALF], notify, given=calibration)
        candidates = [candidate for candidate in candidates if candidate.method in known.methods]
    else:
        known = calibrated(spec, source, lines, notify, sharing=sharing)
    workers = spec.workers.count
    exact, promising, rejected = sift(predicted(known, candidates, link, workers))
    run, steps, until = run_of(spec, known), 0, math.inf

    def late() -> bool:
        return clock() >= until

    train, busy, others = partial(probe_runs.train, late=late), "", OthersWork()
    if promising:
        if busy := busy_now():
            notify(busy)
            import torch  # noqa: PLC0415 - takes seconds

            torch.set_num_threads(1)  # several would wait for the one that is interrupted: ten times as long
        until = clock() + probe_seconds
        notify(f"probing for at most {probe_seconds:g} s, after which what is not trained is left out")
        step_s = _step_seconds(probe_runs, run, train)
        promising, more, steps = shortlist(run, exact, promising, step_s, probe_seconds)
        rejected += more
    decision = choose(run, exact, promising, rejected, steps, train, notify, late=late)
    if promising and not busy and (busy := others.warning()):
        notify(busy)
    return Finding(decision, link, half_all_reduce(known, link, workers))


def _step_seconds(probe_runs: "ProbeRuns", run: Run, train: Train | None = None) -> float:
    """Seconds of a simulated uncompressed step, after a warm-up; infinite if the time was over before."""
    before = seconds = 0.0
    for until in (_TIMED_STEPS, 2 * _TIMED_STEPS):
        if until <= max(_TIMED_STEPS, run.iterations):
            (train or probe_runs.train)(run.reference, until, _TIMED_STEPS)
            before, seconds = seconds, until * probe_runs.step_seconds(run.reference)
    return (seconds - before) / _TIMED_STEPS if math.isfinite(seconds) else math.inf


def run_of(spec: RunSpec, calibration: Calibration) -> Run:
    """The run, as far as probes depend on it."""
    training, epoch = spec.training, calibration.steps_an_epoch
    warm_up = training.warmup.iterations or math.ceil(training.warmup.epochs * epoch)
    reference, *tuned = tuned_references(spec)
    iterations = training.iterations or training.epochs * epoch
    return Run(reference, iterations, epoch, warm_up, tuned[0] if tuned else None)
