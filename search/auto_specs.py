"""The runs of `taugrad auto`: a spec with another threshold, with local steps, or without compression.

A threshold on gradients misleads Adam, which sees an element rarely, and then a large value: its second
moment grows, and its steps shrink. With local steps and a threshold on their result, second moments are as
without compression (docs/adamw.md).

Momentum moves between the optimizer and the compressor (Deep Gradient Compression, section 3.2). SGD adds
weight decay to the gradient, so momentum in the optimizer amplifies it: a steady decay has 1 / (1 - momentum)
times the effect. With momentum in the compressor, the decay must be larger by this factor.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from taugrad.compressors.methods import NoCompression, read_config
from taugrad.compressors.methods.base import Exempt
from taugrad.compressors.methods.threshold import ThresholdedMethod
from taugrad.compressors.thresholds.allocate import AllocatedTau
from taugrad.compressors.thresholds.density import DensityTau
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import WeightsSync, in_mode, real
from taugrad.platform.spec.yaml_file import dump_yaml

from .advice import ADAPTIVE, local_rate
from .tables import rounded

METHOD = "strom(0.1) | golomb_rice"
"""The rule and codec of specs that have no rule with a threshold."""

STEPS = ((10, 0.02), (4, 0.1), (2, 0.2))
"""Local steps between exchanges and the density of an exchange, the fewest bytes first."""
MODERATE = 1
"""The index of the one that is used without a comparison."""
_KEPT = ("reduction", "nonfinite", "momentum", "exempt")
"""Fields that a method keeps when it is replaced by another."""


def at_density(spec: RunSpec, density: float, *, early_momentum: bool = False) -> RunSpec:
    """The run with a threshold for a density; with early momentum, it comes before the threshold if it can.

    Raises:
        ValidationError: the method cannot work in the run's mode of synchronization.
    """
    method = None if isinstance(spec.compressor, ThresholdedMethod) else METHOD
    tau = AllocatedTau(density=density).model_dump(mode="json")
    run = RunSpec.model_validate(with_method(spec, method, {"tau": tau}))
    return named(spec, (momentum_first(run) if early_momentum else run).model_dump(mode="json"))


def without_compression(spec: RunSpec) -> RunSpec:
    """The uncompressed run that a tolerance refers to; may raise ValidationError."""
    tree = in_optimizer(spec)
    for sync in (tree["sync"], tree["sync"].get("of", {})):
        if "downlink" in sync:
            sync["downlink"] = None
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
        and real(spec.sync).gathers_buckets
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
    encrypted = real(spec.sync).authenticated
    mode = WeightsSync(every=every, unsent=1 / spec.workers.count, authenticated=encrypted)
    tree["sync"] = in_mode(spec.sync, mode).model_dump(mode="json")
    optimizer = tree["training"]["optimizer"]
    optimizer["lr"] = local_rate(optimizer["lr"], spec.workers.count)
    return named(spec, tree)


def as_file(spec: RunSpec, remark: str) -> str:
    """The run as a YAML file that begins with a remark, a sentence, and has the compressor as a line."""
    tree = spec.model_dump(mode="json") | {"compressor": str(spec.compressor)}
    return f"# {remark}.\n{dump_yaml(tree)}"


def in_optimizer(spec: RunSpec) -> dict[str, Any]:
    """A spec's tree with momentum in the optimizer, as without compression."""
    tree = spec.model_dump(mode="json")
    momentum, optimizer = spec.compressor.momentum_correction, tree["training"]["optimizer"]
    if momentum and "nesterov" in optimizer:
        tree["compressor"]["momentum"] = 0.0
        optimizer["momentum"] = momentum
        if optimizer["kind"] == "sgd":  # LARS scales gradient and decay together, by a norm of both
            optimizer["weight_decay"] = rounded(optimizer["weight_decay"] * (1 - momentum), 12)
    return tree


def momentum_first(spec: RunSpec) -> RunSpec:
    """The run with momentum in the compressor, before the threshold.

    The run as it is where that would be another algorithm: LARS divides by a norm of the gradient, Nesterov's
    and Muon's momentum are of another form, local steps keep theirs, and what does not meet the threshold
    (exempt parameters, layers that `hybrid` does not exchange) would have none.
    """
    tree = spec.model_dump(mode="json")
    optimizer, mode = tree["training"]["optimizer"], real(spec.sync)
    momentum = optimizer.get("momentum", 0.0)
    if (
        not momentum
        or optimizer["kind"] != "sgd"
        or optimizer["nesterov"]
        or mode.is_local
        or mode.mode == "hybrid"
        or getattr(spec.compressor, "exempt", Exempt()) != Exempt()
    ):
        return spec
    tree["compressor"]["momentum"], optimizer["momentum"] = momentum, 0.0
    # Without a quotient's rounding error: there and back is the same number.
    optimizer["weight_decay"] = rounded(optimizer["weight_decay"] / (1 - momentum), 15)
    try:
        return RunSpec.model_validate(tree)
    except ValueError:  # a method or a mode without momentum of its own
        return spec
