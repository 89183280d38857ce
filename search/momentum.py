"""Moves momentum between the optimizer and the compressor (Deep Gradient Compression, section 3.2).

SGD adds weight decay to the gradient, so momentum in the optimizer amplifies it: a steady decay has 1 / (1 -
momentum) times the effect. With momentum in the compressor, the decay must be larger by this factor.
"""

from typing import Any

from taugrad.compressors.methods.base import Exempt
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import real

from .tables import rounded


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
