"""Chooses how to train a run over a link: plan, probes, decision."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import GradientsSync

from ..plan.calibrated import HALF, Calibration
from ..plan.calibration import warning_if_busy
from ..plan.candidate import Candidate
from ..plan.candidates import candidates_of, left_out, tuned_references
from ..plan.link import Link
from ..plan.planning import predict, predicted
from ..plan.run_plan import calibrated
from ..plan.step_model import StepTime
from .choice import Decision, Run, Train, choose, shortlist
from .request import TargetRequest

if TYPE_CHECKING:
    from .probe_runs import ProbeRuns

_TIMED_STEPS = 5
"""Steps, after as many warm-up steps, that are timed to find how long a probe may be."""


def find(
    spec: RunSpec,
    source: str,
    request: TargetRequest,
    link: Link,
    probe_runs: "ProbeRuns",
    notify: Callable[[str], None],
) -> tuple[Decision, StepTime]:
    """Chooses how to train a run over a link; also returns a step by torch's 16-bit all-reduce.

    Args:
        spec: the run; `workers.count` is at least 2.
        source: its file's name, for messages.
        request: says how long probes may take. With its calibration, candidates with other methods are left
            out.
        link: of every worker.
        probe_runs: trains the run's beginnings.
        notify: called with messages.

    Raises:
        SpecError: the model cannot be measured.
    """
    candidates = candidates_of(spec)
    if (why := left_out(spec)) is not None:
        notify(f"not tried: {why}")
    if request.calibration is not None:
        known = calibrated(spec, source, ["none", HALF], notify, given=request.calibration)
        candidates = [candidate for candidate in candidates if candidate.method in known.methods]
    else:
        lines = sorted({candidate.method for candidate in candidates})
        known = calibrated(spec, source, lines, notify, sharing=request.sharing)
    workers = spec.workers.count
    exact, promising, rejected = sift(predicted(known, candidates, link, workers))
    run, half = run_of(spec, known), half_all_reduce(known, link, workers)
    if not promising:
        return choose(run, exact, [], rejected, 0, probe_runs.train), half
    with warning_if_busy(notify):
        import torch  # noqa: PLC0415 - takes seconds

        torch.set_num_threads(1)  # several would wait for the one that is interrupted: ten times as long
        seconds, began = request.probe_seconds, monotonic()
        notify(f"probing for at most {seconds:g} s, after which what is not trained is left out")

        def late() -> bool:
            return monotonic() >= began + seconds

        train = partial(probe_runs.train, late=late)
        step_s = _step_seconds(probe_runs, run, train)
        promising, more, steps = shortlist(run, exact, promising, step_s, seconds)
        decision = choose(run, exact, promising, [*rejected, *more], steps, train, notify, late=late)
    return decision, half


def sift(candidates: Sequence[Candidate]) -> tuple[Candidate, list[Candidate], list[Candidate]]:
    """Separates the fastest exact candidate, those that may be faster to a target, and the rejected.

    `candidates` are sorted by their seconds, and at least one is exact; so are the results.
    """
    exact = next(candidate for candidate in candidates if candidate.is_exact)
    kept: list[Candidate] = []
    rejected: list[Candidate] = []
    for candidate in candidates:
        if candidate is exact:
            continue
        twin = next((other for other in (exact, *kept) if other.learns_like(candidate)), None)
        finer = next((other for other in kept if other.loses_less_than(candidate)), None)
        if not candidate.worth:
            why = "an adaptive optimizer learns little with a threshold on gradients"
        elif twin is not None:
            why = f"learns like {twin}, which is faster"
        elif candidate.least_to_target >= exact.seconds:
            why = f"no faster than {exact}, which loses nothing"
        elif finer is not None:
            why = f"no faster than {finer}, which loses less"
        else:
            kept.append(candidate)
            continue
        rejected.append(replace(candidate, rejected=why))
    return exact, kept, rejected


def half_all_reduce(calibration: Calibration, link: Link, workers: int) -> StepTime:
    """The time of a step by torch's 16-bit all-reduce, the baseline."""
    return predict(calibration, Candidate(HALF, GradientsSync()), link, workers).step


def _step_seconds(probe_runs: "ProbeRuns", run: Run, train: Train) -> float:
    """Seconds of a simulated uncompressed step, after a warm-up; infinite if the time was over before."""
    before = seconds = 0.0
    for until in (_TIMED_STEPS, 2 * _TIMED_STEPS):
        if until <= max(_TIMED_STEPS, run.iterations):
            train(run.reference, until, _TIMED_STEPS)
            before, seconds = seconds, until * probe_runs.step_seconds(run.reference)
    return (seconds - before) / _TIMED_STEPS if math.isfinite(seconds) else math.inf


def run_of(spec: RunSpec, calibration: Calibration) -> Run:
    """The run, as far as probes depend on it."""
    training, epoch = spec.training, calibration.steps_an_epoch
    warm_up = training.warmup.iterations or math.ceil(training.warmup.epochs * epoch)
    reference, *tuned = tuned_references(spec)
    iterations = training.iterations or training.epochs * epoch
    return Run(reference, iterations, epoch, warm_up, tuned[0] if tuned else None)
