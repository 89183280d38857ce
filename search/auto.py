"""`taugrad auto`: a run whose threshold finds itself, by bytes to send or accuracy to lose at most."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taugrad.compressors.config import NoCompression, read_config
from taugrad.compressors.config.methods import ThresholdedMethod
from taugrad.compressors.config.thresholds import AllocatedTau
from taugrad.platform.launching.cluster import is_local
from taugrad.platform.preflight import check, usable_store
from taugrad.platform.reading import SpecError
from taugrad.platform.spec import RunSpec

from .costs import DENSEST, CannotEstimate, cost_of
from .finished import finished
from .objective import Objective, Outcome

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

OK, FAILED = 0, 1
DEFAULT_TOLERANCE = 0.5
"""Percentage points."""
EVERY = 200
"""Iterations from one allocation over the layers to the next."""
DENSITIES = (0.003, 0.03)
"""What a tolerance is tried with, in this order; docs/search.md has the figures behind the choice."""
METHOD = "strom(0.1) | golomb_rice"
"""The rule and codec where the spec has no rule with a threshold; the policy takes tau's place."""

_KEPT = ("reduction", "nonfinite", "momentum", "exempt")
"""What is kept of a method whose place METHOD takes."""
_COMMAND_LINE = "command line"

Train = Callable[[RunSpec], int]
"""Trains a spec as `taugrad train` does; 0 when it came to its end."""


@dataclass(frozen=True)
class Goal:
    """What the run may cost: one of the two.

    Attributes:
        budget: MB on the wire, all workers together.
        tolerance: percentage points of accuracy below the run without compression.
    """

    budget: float | None
    tolerance: float

    @classmethod
    def read(cls, budget: float | None, tolerance: float | None) -> "Goal":
        """The goal that a command line gives.

        Raises:
            SpecError: a number is none that could be kept to.
        """
        if budget is not None and not 0 < budget < math.inf:
            raise SpecError(_COMMAND_LINE, [f"--budget {budget:g}: must be MB, greater than 0"])
        if tolerance is not None and not 0 <= tolerance <= 100:
            raise SpecError(_COMMAND_LINE, [f"--tolerance {tolerance:g}: must be points, 0 to 100"])
        return cls(budget, DEFAULT_TOLERANCE if tolerance is None else tolerance)


def run_auto(spec: RunSpec, source: str, goal: Goal, train: Train) -> int:
    """Trains a spec with a threshold that keeps to a goal.

    Args:
        spec: the run; its own threshold is replaced.
        source: its file's name, for messages.
        goal: what it may cost.
        train: trains.

    Returns:
        0; 1 when a training failed, or none was within the tolerance.

    Raises:
        SpecError: something cannot be had; nothing was started.
    """
    console = Console()
    console = console if console.is_terminal else Console(width=132)
    sys.path.insert(0, str(Path.cwd()))  # a user's own models and data
    chosen = _possible(lambda: at_density(spec, DENSITIES[0]), source)
    check(chosen, source, local=is_local())
    if not isinstance(spec.compressor, ThresholdedMethod | NoCompression):
        kind, codec = chosen.compressor.kind, getattr(chosen.compressor, "codec", "")
        _say(console, f"{spec.compressor.kind} has no threshold; {kind} | {codec} takes its place")
    client = usable_store()
    if goal.budget is not None:
        return _spend(spec, source, goal.budget, train, client, console)
    bare = _possible(lambda: without_compression(spec), source)
    check(bare, source, local=is_local())
    return _approach(spec, bare, goal.tolerance, train, client, console)


def _possible(build: Callable[[], RunSpec], source: str) -> RunSpec:
    """A spec that follows from the given one; where it is none, that is said of its file."""
    try:
        return build()
    except ValidationError as error:
        problems = [str(each["msg"]).removeprefix("Value error, ") for each in error.errors()]
        raise SpecError(source, problems) from None


def at_density(spec: RunSpec, density: float) -> RunSpec:
    """The run with a threshold that keeps to a density.

    Raises:
        ValidationError: the method cannot work in the run's mode of synchronization.
    """
    policy = AllocatedTau(density=density, every=EVERY)
    tree = spec.model_dump(mode="json")
    method = tree["compressor"]
    if not isinstance(spec.compressor, ThresholdedMethod):
        kept = {field: method[field] for field in _KEPT if field in method}
        method = read_config(METHOD).model_dump(mode="json") | kept
    tree["compressor"] = {**method, "tau": policy.model_dump(mode="json")}
    return _named(spec, tree)


def without_compression(spec: RunSpec) -> RunSpec:
    """The run that a tolerance is measured from.

    Raises:
        ValidationError: there is none.
    """
    tree = spec.model_dump(mode="json")
    momentum = getattr(spec.compressor, "momentum", 0)
    if momentum and "momentum" in tree["training"]["optimizer"]:
        tree["training"]["optimizer"]["momentum"] = momentum  # it was the compressor's part
    for sync in (tree["sync"], tree["sync"].get("of", {})):
        if "back" in sync:
            sync["back"] = None
    tree["compressor"] = {"kind": "none", "reduction": spec.compressor.reduction}
    return _named(spec, tree)


def _named(spec: RunSpec, tree: dict[str, Any]) -> RunSpec:
    """The changed run; its name tells it from the others."""
    changed = RunSpec.model_validate({**tree, "name": ""})
    name = f"{spec.name}: {changed.compressor}"[:200] if spec.name else ""
    return changed.model_copy(update={"name": name})


def _spend(
    spec: RunSpec, source: str, budget: float, train: Train, client: "MlflowClient", console: Console
) -> int:
    """One training by a budget, MB."""
    try:
        cost = cost_of(at_density(spec, DENSITIES[0]))
    except CannotEstimate as error:
        raise SpecError(source, [f"{error}; give --tolerance in place of --budget"]) from None
    try:
        density = cost.density(1e6 * budget)
    except ValueError as error:
        raise SpecError(_COMMAND_LINE, [f"--budget {error}"]) from None
    chosen = at_density(spec, rounded_down(density))
    _say(
        console,
        f"{budget:g} MB for {cost.sendings:,} sendings of {cost.elements:,} parameters: {chosen.title}",
    )
    if density == DENSEST and cost.wire_bytes(DENSEST) < 0.99e6 * budget:
        _say(
            console, f"  no density above {DENSEST:g} is taken: about {cost.wire_bytes(DENSEST) / 1e6:.4g} MB"
        )
    if train(chosen) != OK:
        return FAILED
    found = finished(client, chosen)
    if found is None:
        _say(console, "MLflow has no result of this run: what it used of the budget is not known")
        return FAILED
    _say(console, spent_line(found.wire_bytes / 1e6, budget))
    return OK


def rounded_down(density: float) -> float:
    """Rounded down to three digits, for people to read."""
    unit = 10.0 ** (math.floor(math.log10(density)) - 2)
    return float(f"{math.floor(density / unit * (1 + 1e-12)) * unit:.3g}")


def spent_line(wire_mb: float, budget: float) -> str:
    """What a run used of its budget, both MB."""
    share = 100 * wire_mb / budget
    over = "" if wire_mb <= budget else f": {wire_mb - budget:.4g} MB too much, the estimate was too low"
    return f"used {wire_mb:.4g} of {budget:g} MB, {share:.0f}%{over}"


@dataclass(frozen=True)
class Attempt:
    """A training on the way to a tolerance."""

    density: float | None
    """None: without compression."""
    outcome: Outcome


def attempts(
    train: Callable[[float | None], Outcome | None], densities: Sequence[float], tolerance: float
) -> list[Attempt]:
    """Trains without compression, then with densities until one is within the tolerance.

    Args:
        train: by density, None without compression; None when it failed, which ends all.
        densities: to try, in this order.
        tolerance: percentage points below the run without compression.

    Returns:
        What was trained, in order.
    """
    done: list[Attempt] = []
    for density in (None, *densities):
        outcome = train(density)
        if outcome is None:
            break
        done.append(Attempt(density, outcome))
        if density is not None and missing(done, tolerance) <= 0:
            break
    return done


def missing(done: Sequence[Attempt], tolerance: float) -> float:
    """Percentage points by which the last attempt is worse than the first one allows; 0 or less: within."""
    return Objective("constraint", tolerance, done[0].outcome).missing(done[-1].outcome)


def _approach(
    spec: RunSpec, bare: RunSpec, tolerance: float, train: Train, client: "MlflowClient", console: Console
) -> int:
    """Trainings until one is within a tolerance, percentage points."""

    def outcome_of(density: float | None) -> Outcome | None:
        wanted = bare if density is None else at_density(spec, density)
        known = finished(client, wanted)
        if known is not None:
            _say(console, f"{wanted.title}: finished before, run {known.run_id} of {wanted.experiment}")
        elif train(wanted) == OK:
            known = finished(client, wanted)
            if known is None:
                _say(console, f"{wanted.title}: MLflow has no result of this run")
        return None if known is None else Outcome(known.accuracy, known.wire_bytes)

    done = attempts(outcome_of, DENSITIES, tolerance)
    if len(done) < 2 or (missing(done, tolerance) > 0 and len(done) <= len(DENSITIES)):
        return FAILED  # a training failed, and has said so
    console.print(_table(done, spec))
    over = missing(done, tolerance)
    if over > 0:
        _say(console, f"none is within {tolerance:g} points: the last one is {over:.2f} points below that")
        return FAILED
    _say(console, f"within {tolerance:g} points: {at_density(spec, done[-1].density or 0).title}")
    return OK


def _table(done: Sequence[Attempt], spec: RunSpec) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("compressor", overflow="fold")
    for heading in ("accuracy", "points\nlost", "wire\nMB", "times\nsmaller"):
        table.add_column(heading, justify="right", no_wrap=True)
    base = done[0].outcome
    for each in done:
        found = each.outcome
        table.add_row(
            Text("none" if each.density is None else str(at_density(spec, each.density).compressor)),
            f"{100 * found.accuracy:.2f}%",
            f"{100 * (base.accuracy - found.accuracy):.2f}",
            f"{found.wire_bytes / 1e6:,.4g}",
            f"{base.wire_bytes / max(found.wire_bytes, 1.0):,.4g}x",
        )
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
