"""The runs of `taugrad auto`: a spec with its threshold replaced, or without compression."""

from typing import Any

from pydantic import BaseModel

from taugrad.compressors.config import NoCompression, read_config
from taugrad.compressors.config.methods import ThresholdedMethod
from taugrad.compressors.config.thresholds import AllocatedTau
from taugrad.platform.spec import RunSpec

from .law.fitting import FittedLaw, LawError

EVERY = 200
"""Iterations from one allocation over the layers to the next."""
METHOD = "strom(0.1) | golomb_rice"
"""The rule and codec where the spec has no rule with a threshold; the policy takes tau's place."""

_LAWFUL = {"strom": METHOD} | {kind: f"{kind}(0.1)" for kind in ("wgt", "bgt", "qgt")}
"""What takes the place of no compression, by the method that a law is for."""
_KEPT = ("reduction", "nonfinite", "momentum", "exempt")
"""What is kept of a method whose place another one takes."""


def at_density(spec: RunSpec, density: float) -> RunSpec:
    """The run with a threshold that keeps to a density.

    Raises:
        ValidationError: the method cannot work in the run's mode of synchronization.
    """
    method = None if isinstance(spec.compressor, ThresholdedMethod) else METHOD
    return _with(spec, method, "tau", AllocatedTau(density=density, every=EVERY))


def by_law(spec: RunSpec, law: FittedLaw, tolerance: float) -> RunSpec:
    """The run with the tau, or the floor, that a law gives it.

    Args:
        spec: the run.
        law: see there.
        tolerance: percentage points of accuracy that it may lose.

    Raises:
        ValidationError: the method cannot work in the run's mode of synchronization.
        LawError: the law says nothing of such a run.
    """
    optimizer, kind = spec.training.optimizer.kind, spec.compressor.kind
    if optimizer not in law.optimizers:
        known = " or ".join(law.optimizers)
        raise LawError(f"training.optimizer.kind = {optimizer}: the law was fitted to runs with {known}")
    if isinstance(spec.compressor, NoCompression):
        method = _LAWFUL.get(law.kind, law.kind)
    elif kind == law.kind:
        method = None
    else:
        raise LawError(f"compressor.kind = {kind}: must be {law.kind}, which the law was fitted for, or none")
    return _with(spec, method, law.looked_for, law.of(spec, tolerance))


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


def _with(spec: RunSpec, method: str | None, field: str, value: BaseModel) -> RunSpec:
    """The run with a field of its method changed, or of another method in its place."""
    tree = spec.model_dump(mode="json")
    fields = tree["compressor"]
    if method is not None:
        kept = {name: fields[name] for name in _KEPT if name in fields}
        fields = read_config(method).model_dump(mode="json")
        fields |= {name: kept[name] for name in kept if name in fields}
    tree["compressor"] = {**fields, field: value.model_dump(mode="json")}
    return _named(spec, tree)


def _named(spec: RunSpec, tree: dict[str, Any]) -> RunSpec:
    """The changed run; its name tells it from the others."""
    changed = RunSpec.model_validate({**tree, "name": ""})
    name = f"{spec.name}: {changed.compressor}"[:200] if spec.name else ""
    return changed.model_copy(update={"name": name})
