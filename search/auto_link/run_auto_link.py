"""The command `taugrad auto --link`: chooses how to train a run over a link, and trains it to a target."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from taugrad.platform.exit_codes import FAILED, OK
from taugrad.platform.launching.driver.cluster import is_local
from taugrad.platform.launching.driver.preflight import check, usable_store
from taugrad.platform.spec import RunSpec, SpecError, refusal
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.terminal import open_console, say, short
from taugrad.platform.tracking import names

from ..advice import warning_of
from ..auto_specs import as_file
from ..measured import finished
from ..plan.candidate import Candidate
from ..plan.candidates import simulated, uncompressed
from ..plan.run_plan import check_plannable, measured_link
from ..plan.table import number
from . import words
from .choice import Decision
from .finding import find
from .request import TargetRequest

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from taugrad.platform.training.trainer import Trainer

ARTIFACT = "choice.md"
"""The artifact of the MLflow run: the comparison, and its reason."""

Train = Callable[[RunSpec], int]
"""Trains a spec as `taugrad train` does; returns 0 if it finished."""


def run_auto_link(spec: RunSpec, source: str, request: TargetRequest, train: Train) -> int:
    """Chooses how to train a spec over a link, and trains it until it reaches a target.

    Returns:
        0; 1 when the training failed or did not reach the target.

    Raises:
        SpecError: something is not available; at most probes were trained.
    """
    from taugrad.platform.data import load  # noqa: PLC0415 - torch takes seconds

    from .probe_runs import probe_runs_of, untrained  # noqa: PLC0415

    console = open_console()
    _check_run(spec, source)
    if warning := warning_of([(source, spec)]):
        say(console, warning, "yellow")
    reference = uncompressed(spec)
    client = None if request.plan_only else usable_store()
    check(simulated(reference) if request.plan_only else reference, source, local=is_local())
    data = load(spec.data)
    with probe_runs_of(spec, data) as probe_runs:
        metric = _check_target(untrained(reference, data), source, request)
        link = request.link or measured_link(request.hosts, console)
        decision, half = find(spec, source, request, link, probe_runs, lambda text: say(console, text))
    chosen = _to_train(spec, decision.best, request)
    compared = words.table_of(decision, half, f"To {metric.label} {metric.shown(request.value)}")
    why = words.reason(decision, link, spec.workers.count, half)
    console.print()
    console.print(compared)
    for line in words.left_out(decision):
        say(console, line, "dim")
    say(console, f"{why}.", "bold")
    if request.output is not None:
        _write(request.output, chosen, why)
        say(console, f"{short(request.output.absolute())}: the chosen spec")
    if client is None:
        return OK
    check(chosen, source, local=is_local())
    if train(chosen) != OK:
        return FAILED
    text = f"{why}.\n\n{compared.markdown()}\n"
    return _conclude(client, chosen, metric, request, decision, text, console)


def _check_run(spec: RunSpec, source: str) -> None:
    check_plannable(spec, source)
    if spec.workers.device != "cpu":
        problem = "only a CPU is measured and probed; use cpu, or compare links by taugrad plan --calibration"
        raise SpecError(source, f"workers.device = {spec.workers.device}: {problem}")
    if spec.workers.count < 2:
        raise SpecError(source, "workers.count = 1: nothing goes over a link; must be at least 2")


def _check_target(untrained: "Trainer", source: str, request: TargetRequest) -> Metric:
    """The target's metric; raises SpecError for unknown metrics, and for targets that are already reached."""
    metrics = {metric.name: metric for metric in untrained.task.metrics}
    target = f"--target {request.metric}={request.value:g}"
    metric = metrics.get(request.metric)
    if metric is None:
        has = ", ".join(metrics)
        raise refusal(f"{target}: no metric of task.kind = {untrained.spec.task.kind}, which has {has}")
    if metric.is_share and not 0 < request.value <= 1:
        raise refusal(f"{target}: must be above 0 and at most 1, such as 0.95 for 95%")
    value = untrained.evaluated()[metric.name]
    if not metric.is_better(request.value, value):
        raise refusal(
            f"{target}: the untrained model of {source} has {metric.name} {value:.4g} already; give a "
            f"{'larger' if metric.more_is_better else 'smaller'} one"
        )
    return metric


def _to_train(spec: RunSpec, candidate: Candidate, request: TargetRequest) -> RunSpec:
    """The chosen candidate as a run until the target, simulated if the given one is."""
    tree = candidate.run.model_dump(mode="json")
    tree["training"]["until"] = {request.metric: request.value}
    if spec.sync.is_simulated:
        tree["sync"] = {"mode": "simulated", "of": tree["sync"]}
    return RunSpec.model_validate({**tree, "name": f"{spec.name}: {candidate}"[:200] if spec.name else ""})


def _write(path: Path, spec: RunSpec, why: str) -> None:
    try:
        path.write_text(as_file(spec, why), encoding="utf-8")
    except OSError as error:
        raise refusal(f"-o {path}: cannot be written: {error.strerror}") from None


def _conclude(
    client: "MlflowClient",
    spec: RunSpec,
    metric: Metric,
    request: TargetRequest,
    decision: Decision,
    text: str,
    console: Console,
) -> int:
    """Prints the result of the training beside the prediction."""
    known = finished(client, spec, metric)
    if known is None:
        say(console, "MLflow has no result of this run: whether it reached the target is not known")
        return FAILED
    with suppress(Exception):  # the choice was printed; the training needs no store any more
        client.log_text(known.run_id, text, ARTIFACT)
    metrics = client.get_run(known.run_id).data.metrics
    if names.TOTAL_ITERATIONS_TO_TARGET not in metrics:
        say(
            console,
            f"{metric.label} {metric.shown(request.value)} was not reached: the run ended at "
            f"{metric.shown(known.value)}; train longer",
        )
        return FAILED
    say(console, result_line(spec, metric, known.value, metrics, decision.best.seconds))
    return OK


def result_line(
    spec: RunSpec, metric: Metric, value: float, metrics: Mapping[str, float], predicted_s: float
) -> str:
    """The time to the target, evaluations included, beside the plan's seconds of a step, `predicted_s`."""
    steps, seconds = metrics[names.TOTAL_ITERATIONS_TO_TARGET], metrics[names.TOTAL_SECONDS]
    reached = f"{metric.label} {metric.shown(value)} after {steps:,.0f} steps"
    predicted = f"{number(steps * predicted_s)} s over the link, {number(predicted_s)} s a step"
    if spec.sync.is_simulated:
        return f"{reached}; predicted: {predicted} (workers were simulated: nothing went over it)"
    taken = f"{number(seconds)} s, {number(seconds / steps)} s a step with evaluations"
    return f"{reached}: {taken}; predicted, without evaluations: {predicted}"
