"""Moves momentum between the optimizer and the compressor (Deep Gradient Compression, section 3.2).

SGD adds weight decay to the gradient, so momentum in the optimizer amplifies it: a steady decay has 1 / (1 -
momentum) times the effect. With momentum in the compressor, the decay must be larger by this factor.
"""

from typing import Any

from taugrad.compressors.method import Method
from taugrad.platform.spec import RunSpec

from .tables import rounded

_CARRIES_DECAY = ("sgd",)
"""Optimizers' kinds. LARS scales gradient and decay together, by a norm of both."""


def momentum_correction(method: Method) -> float:
    """A compressor's momentum, 0 to 1."""
    return method.momentum_correction


def in_optimizer(spec: RunSpec) -> dict[str, Any]:
    """A spec's tree with momentum in the optimizer, as without compression."""
    tree = spec.model_dump(mode="json")
    momentum, optimizer = momentum_correction(spec.compressor), tree["training"]["optimizer"]
    if momentum and "nesterov" in optimizer:
        tree["compressor"]["momentum"] = 0.0
        optimizer["momentum"] = momentum
        optimizer["weight_decay"] = decay_beside(momentum, optimizer["weight_decay"], optimizer["kind"])
    return tree


def in_compressor(spec: RunSpec) -> dict[str, Any]:
    """A spec's tree with momentum in the compressor, whose method must be sparse.

    Raises:
        ValueError: the optimizer has a form of momentum that the compressor does not have.
    """
    tree = spec.model_dump(mode="json")
    optimizer = tree["training"]["optimizer"]
    momentum = optimizer.get("momentum", 0.0)
    if momentum:
        if optimizer.get("nesterov", True):  # Muon's is of that form
            raise ValueError(
                "training.optimizer.nesterov = True: the compressor's momentum has no Nesterov form"
            )
        tree["compressor"]["momentum"] = momentum
        optimizer["momentum"] = 0.0
        if optimizer["kind"] in _CARRIES_DECAY:
            # Without a quotient's rounding error: there and back, below, is the same number.
            optimizer["weight_decay"] = rounded(optimizer["weight_decay"] / (1 - momentum), 15)
    return tree


def momentum_first(spec: RunSpec) -> RunSpec:
    """The run with momentum in the compressor, before the threshold; as it is where that is not possible."""
    try:
        return RunSpec.model_validate(in_compressor(spec))
    except ValueError:
        return spec


def decay_beside(momentum: float, decay: float, optimizer: str) -> float:
    """The weight decay with momentum in the optimizer that equals `decay` with momentum in the compressor."""
    return rounded(decay * (1 - momentum), 12) if optimizer in _CARRIES_DECAY else decay
