"""The command `taugrad auto`: finds a threshold for a byte budget or a tolerance, and trains with it."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError
from rich.console import Console

from taugrad.compressors.methods import NoCompression
from taugrad.compressors.methods.threshold import ThresholdedMethod
from taugrad.platform.exit_codes import FAILED, OK
from taugrad.platform.launching.driver.cluster import is_local
from taugrad.platform.launching.driver.preflight import check, usable_store
from taugrad.platform.spec import RunSpec, SpecError, refusal
from taugrad.platform.tasks.claims import difference
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.terminal import open_console, say

from .auto_specs import (
    MODERATE,
    STEPS,
    at_density,
    local_steps,
    problems_of,
    takes_local_steps,
    without_compression,
)
from .costs import DENSEST, CannotEstimate, cost_of
from .measured import common_metric, finished
from .objective import Objective, TrialOutcome
from .progress import times_smaller
from .tables import TextTable, rounded_down

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DENSITIES = {0.003: True, 0.03: False}
"""Densities to try for a tolerance, in this order, and whether momentum comes before the threshold. It helps
the more, the fewer the bytes (docs/search.md)."""

Train = Callable[[RunSpec], int]
"""Trains a spec as `taugrad train` does; returns 0 if it finished."""


@dataclass(frozen=True)
class Goal:
    """A budget or a tolerance, and how to find the threshold.

    Attributes:
        budget: MB on the wire, all workers together; None: the tolerance counts.
        tolerance: the loss that is allowed, in points of accuracy or nats; None: `Metric.margin`.
        once: train once, without a comparison, so without a tolerance.
    """

    budget: float | None
    tolerance: float | None
    once: bool = False

    def __post_init__(self) -> None:
        """Refuses numbers of a command line that are not valid, with SpecError."""
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise refusal(f"--budget {self.budget:g}: must be MB, greater than 0")
        if self.tolerance is not None and not 0 <= self.tolerance < math.inf:
            raise refusal(
                f"--tolerance {self.tolerance:g}: must be points of accuracy, or nats of a loss, 0 or more"
            )
        if self.once and self.tolerance is not None:
            raise refusal(f"--tolerance {self.tolerance:g} with --once: nothing is compared; leave one out")


def run_auto(spec: RunSpec, source: str, goal: Goal, train: Train) -> int:
    """Trains a spec with a threshold that meets a goal.

    Returns:
        0; 1 when a training failed, or none was within the tolerance.

    Raises:
        SpecError: something is not available; nothing was started.
    """
    console = open_console()
    client = usable_store()
    if goal.budget is not None:
        chosen = _possible(lambda: at_density(spec, DENSEST), source)
        _announce(spec, chosen, console)
        check(chosen, source, local=is_local())
        return _spend(spec, source, goal.budget, train, client, console)
    if spec.publish.path and not goal.once:
        several = "several trainings are compared, and each would publish there"
        hint = "give --publish.path '' and train the result, or give --once or --budget"
        raise SpecError(source, f"publish.path = {spec.publish.path}: {several}; {hint}")
    metric = common_metric([spec], source)
    first, further = _proposals(spec, source, console)
    _announce(spec, first, console)
    check(first, source, local=is_local())
    if goal.once:
        return train(first)
    bare = _possible(lambda: without_compression(spec), source)
    check(bare, source, local=is_local())
    return _approach(bare, further, goal.tolerance, metric, train, client, console)


def _proposals(spec: RunSpec, source: str, console: Console) -> tuple[RunSpec, list[RunSpec]]:
    """The run to train once, without a comparison, and the runs to try for a tolerance."""
    if takes_local_steps(spec):
        kind, times = spec.training.optimizer.kind, spec.workers.count**0.5
        say(
            console,
            f"by local steps: thresholds on gradients mislead {kind}, so each worker takes local steps at "
            f"{times:.3g} times the learning rate, and their result meets the threshold",
        )
        local = [_possible(lambda s=step: local_steps(spec, *s), source) for step in STEPS]  # type: ignore[misc]
        return local[MODERATE], local
    some = [
        _possible(lambda d=density, e=early: at_density(spec, d, early_momentum=e), source)  # type: ignore[misc]
        for density, early in DENSITIES.items()
    ]
    return some[0], some


def _announce(spec: RunSpec, chosen: RunSpec, console: Console) -> None:
    if not isinstance(spec.compressor, ThresholdedMethod | NoCompression) and (
        spec.compressor.kind != chosen.compressor.kind
    ):
        kind, codec = chosen.compressor.kind, chosen.compressor.position_codec
        say(console, f"{spec.compressor.kind} has no threshold; {kind} | {codec} is used instead")
    momentum = chosen.compressor.momentum_correction
    if momentum and not spec.compressor.momentum_correction:
        where = f"momentum {momentum:g} is applied before the threshold, not in the optimizer"
        say(console, f"at the first density, {where}")


def _possible(build: Callable[[], RunSpec], source: str) -> RunSpec:
    """Builds a spec; raises SpecError, which names the file, if it is not valid."""
    try:
        return build()
    except ValidationError as error:
        raise SpecError(source, *problems_of(error)) from None


def _spend(
    spec: RunSpec, source: str, budget: float, train: Train, client: "MlflowClient", console: Console
) -> int:
    """Trains once by a budget, MB."""
    try:
        cost = cost_of(at_density(spec, DENSEST))
    except CannotEstimate as error:
        raise SpecError(source, f"{error}; give --tolerance instead of --budget") from None
    try:
        density = cost.density(1e6 * budget)
    except ValueError as error:
        raise refusal(f"--budget {error}") from None
    chosen = at_density(spec, rounded_down(density))
    say(
        console,
        f"{budget:g} MB for {cost.sendings:,} sendings of {cost.elements:,} parameters: {chosen.title}",
    )
    if density == DENSEST and cost.wire_bytes(DENSEST) < 0.99e6 * budget:
        say(console, f"  the highest density is {DENSEST:g}: about {cost.wire_bytes(DENSEST) / 1e6:.4g} MB")
    if train(chosen) != OK:
        return FAILED
    outcome = finished(client, chosen, common_metric([spec], source))
    if outcome is None:
        say(console, "MLflow has no result of this run: how much of the budget it used is not known")
        return FAILED
    wire_mb = outcome.wire_bytes / 1e6
    over = "" if wire_mb <= budget else f": {wire_mb - budget:.4g} MB too much, the estimate was too low"
    say(console, f"used {wire_mb:.4g} of {budget:g} MB, {100 * wire_mb / budget:.0f}%{over}")
    return OK


def _approach(
    bare: RunSpec,
    further: Sequence[RunSpec],
    tolerance: float | None,
    metric: Metric,
    train: Train,
    client: "MlflowClient",
    console: Console,
) -> int:
    """Trains until one training is within the tolerance."""
    counted, most = itertools.count(1), 1 + len(further)

    def outcome_of(wanted: RunSpec) -> TrialOutcome | None:
        known = finished(client, wanted, metric)
        before = "" if known is None else f"; finished before, run {known.run_id} of {wanted.experiment}"
        say(console, f"training {next(counted)} of at most {most}: {wanted.title}{before}")
        if known is None and train(wanted) == OK:
            known = finished(client, wanted, metric)
            if known is None:
                say(console, f"{wanted.title}: MLflow has no result of this run")
        return known

    done = list[tuple[RunSpec, TrialOutcome]]()
    for spec in (bare, *further):
        outcome = outcome_of(spec)
        if outcome is None:
            return FAILED  # a training failed, and has printed why
        done.append((spec, outcome))
        base = done[0][1]
        goal = Objective("constraint", metric, tolerance, base)
        if len(done) > 1 and goal.missing(outcome) <= 0:
            break
    console.print(_table(done, metric))
    spec, outcome = min(done[1:], key=lambda one: (math.isnan(goal.missing(one[1])), goal.missing(one[1])))
    over, amount = goal.missing(outcome), metric.amount(goal.allowed(base.value))
    within = over <= 0
    if within:
        say(console, f"within {amount}: {spec.title}")
    else:
        beyond = f"{over:.{metric.digits}f} {metric.difference_unit}".rstrip()
        say(console, f"no training lost {amount} or less: {spec.title} comes nearest, {beyond} beyond that")
    say(console, sureness(outcome, base, metric))
    return OK if within else FAILED


def sureness(outcome: TrialOutcome, base: TrialOutcome, metric: Metric) -> str:
    """The interval of a run's loss against the run without compression; both have one seed."""
    examples = outcome.examples if outcome.examples == base.examples else None
    change = difference({"": outcome.value}, {"": base.value}, examples, metric)
    measured = f"measured: {_written(metric, change.lost)} {metric.difference_unit} lost".replace("  ", " ")
    if change.low is None or change.high is None:
        why = "the number of test examples is not known" if metric.is_share else "seeds were not repeated"
        return f"{measured}, and no interval: {why}"
    least, most = sorted(-metric.sign * end for end in (change.low, change.high))
    return (
        f"{measured}, 95% interval {_written(metric, least)} to {_written(metric, most)}, "
        f"over {examples:,} test examples; seeds were not repeated"
    )


def _written(metric: Metric, lost: float) -> str:
    return f"{round(lost, metric.digits) + 0.0:.{metric.digits}f}"  # not -0.00


def _table(done: Sequence[tuple[RunSpec, TrialOutcome]], metric: Metric) -> TextTable:
    headings = ("compressor", metric.label, f"{metric.difference_unit} lost", "wire MB", "times smaller")
    base, rows = done[0][1], []
    for spec, outcome in done:
        smaller = times_smaller(outcome, base)
        rows.append(
            (
                str(spec.compressor),
                metric.shown(outcome.value),
                _written(metric, metric.lost(outcome.value, base.value)),
                f"{outcome.wire_bytes / 1e6:,.4g}",
                f"{smaller:,.4g}x",
                f"{smaller / 2:,.4g}x",
            )
        )
    return TextTable((*headings, "than 16 bits"), rows)
