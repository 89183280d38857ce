"""The runs of `taugrad auto`: a spec with another threshold, with local steps, or without compression.

A threshold on gradients misleads Adam, which sees an element rarely, and then a large value: its second
moment grows, and its steps shrink. With local steps and a threshold on their result, second moments are as
without compression (docs/adamw.md).
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from taugrad.compressors.method import NoCompression, read_config
from taugrad.compressors.method.policies import AllocatedTau, DensityTau
from taugrad.compressors.method.sparse import ThresholdedMethod
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import WeightsSync, in_mode, real

from .advice import ADAPTIVE, local_rate
from .law.fitting import FittedLaw, LawError
from .momentum import in_compressor, in_optimizer, momentum_correction

METHOD = "strom(0.1) | golomb_rice"
"""The rule and codec of specs that have no rule with a threshold."""

STEPS = ((10, 0.02), (4, 0.1), (2, 0.2))
"""Local steps between exchanges and the density of an exchange, the fewest bytes first."""
MODERATE = 1
"""The index of the one that is used without a comparison."""

_LAWFUL = {"strom": METHOD} | {kind: f"{kind}(0.1)" for kind in ("wgt", "bgt", "qgt")}
"""The methods that replace no compression, by the kind of a law."""
_KEPT = ("reduction", "nonfinite", "momentum", "exempt")
"""Fields that a method keeps when it is replaced by another."""


def at_density(spec: RunSpec, density: float) -> RunSpec:
    """The run with a threshold for a density.

    Raises:
        ValidationError: the method cannot work in the run's mode of synchronization.
    """
    method = None if isinstance(spec.compressor, ThresholdedMethod) else METHOD
    tau = AllocatedTau(density=density).model_dump(mode="json")
    return named(spec, with_method(spec, method, {"tau": tau}))


def by_law(spec: RunSpec, law: FittedLaw, tolerance: float) -> RunSpec:
    """The run with a law's tau, or floor, for a tolerance in percentage points of accuracy.

    Momentum moves into the compressor if it was there in the runs that the law was fitted to.

    Raises:
        LawError: the law does not apply to the run.
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
    momentum = momentum_correction(spec.compressor)
    if momentum and law.momentum_in == "optimizer":
        raise LawError(
            f"compressor.momentum = {momentum}: the law was fitted to runs where the optimizer had it"
        )
    try:
        lawful = RunSpec.model_validate(with_method(spec, method))
        if law.momentum_in == "compressor" and not momentum:
            lawful = _momentum_moved(lawful)
        threshold = law.of(lawful, tolerance).model_dump(mode="json")
        return named(spec, with_method(lawful, None, {law.looked_for: threshold}))
    except ValidationError as error:
        raise LawError(problems_of(error)[0]) from None


def stricter(spec: RunSpec, lawful: RunSpec, ratio: float) -> RunSpec:
    """The run `lawful`, by `by_law`, with a threshold that should lose less, by a ratio above 0.

    The loss is proportional to tau, which residuals hold back, and for a floor to the error of a symbol,
    which a further bit halves. The law itself is not fitted to losses below 2 points.
    """
    method = lawful.compressor.model_dump(mode="json")
    if "floor" in method:
        looked_for, moved = "floor", -math.log2(ratio)
    else:
        looked_for, moved = "tau", math.log(ratio)
    threshold = method[looked_for]
    constant = float(f"{threshold['constant'] + moved:.4g}")
    return named(spec, with_method(lawful, None, {looked_for: threshold | {"constant": constant}}))


def _momentum_moved(spec: RunSpec) -> RunSpec:
    try:
        return RunSpec.model_validate(in_compressor(spec))
    except ValueError as error:
        problem = problems_of(error)[0] if isinstance(error, ValidationError) else str(error)
        raise LawError(f"momentum would go into the compressor, as in the law's runs; {problem}") from None


def without_compression(spec: RunSpec) -> RunSpec:
    """The uncompressed run that a tolerance refers to; raises ValidationError if it is not valid."""
    tree = in_optimizer(spec)
    for sync in (tree["sync"], tree["sync"].get("of", {})):
        if "back" in sync:
            sync["back"] = None
    tree["compressor"] = {"kind": "none", "reduction": spec.compressor.reduction}
    return named(spec, tree)


def with_method(
    spec: RunSpec, method: str | None, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A spec's tree with another method, if it is given, and changed fields of the method."""
    tree = spec.model_dump(mode="json")
    fields = tree["compressor"]
    if method is not None:
        kept = {name: fields[name] for name in _KEPT if name in fields}
        fields = read_config(method).model_dump(mode="json")
        fields |= {name: kept[name] for name in kept if name in fields}
    return {**tree, "compressor": {**fields, **(changes or {})}}


def named(spec: RunSpec, tree: dict[str, Any]) -> RunSpec:
    """The changed run, named after its compressor."""
    changed = RunSpec.model_validate({**tree, "name": ""})
    name = f"{spec.name}: {changed.compressor}"[:200] if spec.name else ""
    return changed.model_copy(update={"name": name})


def problems_of(error: ValidationError) -> list[str]:
    """The problems of a spec, a sentence each."""
    return [str(problem["msg"]).removeprefix("Value error, ") for problem in error.errors()]


def takes_local_steps(spec: RunSpec) -> bool:
    """Whether local steps can replace the exchange of gradients of an adaptive optimizer."""
    method = spec.compressor
    return (
        spec.training.optimizer.kind in ADAPTIVE
        and real(spec.sync).mode == "allgather"
        and isinstance(method, NoCompression | ThresholdedMethod)
        and method.nonfinite == "refuse"
        and spec.workers.count > 1
    )


def local_steps(spec: RunSpec, every: int, density: float) -> RunSpec:
    """The run with `every` local steps between exchanges of a density from 0 to 1; see `takes_local_steps`.

    The learning rate is that of local steps (`advice.local_rate`). A worker's own weights keep the part of
    its residual that the residual will have in the workers' mean. Raises ValidationError if the method does
    not work with local steps.
    """
    method = None if isinstance(spec.compressor, ThresholdedMethod) else METHOD
    tau = DensityTau(target=density, every=1).model_dump(mode="json")
    tree = with_method(spec, method, {"tau": tau})
    mode = WeightsSync(every=every, unsent=1 / spec.workers.count)
    tree["sync"] = in_mode(spec.sync, mode).model_dump(mode="json")
    optimizer = tree["training"]["optimizer"]
    optimizer["lr"] = local_rate(optimizer["lr"], spec.workers.count)
    return named(spec, tree)
