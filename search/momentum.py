"""Whose part momentum is: the optimizer's, or the compressor's (Deep Gradient Compression, section 3.2).

SGD adds the decay of the weights to the gradient, so that momentum carries it on: a steady decay then does
1 / (1 - momentum) times what it does beside momentum in the compressor, where it must be so much larger.
"""

from typing import Any

from taugrad.compressors.config import Method
from taugrad.platform.spec import RunSpec

from .digits import rounded

_CARRIES_DECAY = ("sgd",)
"""Optimizers' kinds. LARS scales gradient and decay together, by a norm of both."""


def own_momentum(method: Method) -> float:
    """A compressor's momentum, 0 to 1."""
    return method.own_momentum


def in_optimizer(spec: RunSpec) -> dict[str, Any]:
    """A spec's tree in which momentum is the optimizer's part, as it is without compression."""
    tree = spec.model_dump(mode="json")
    momentum, optimizer = own_momentum(spec.compressor), tree["training"]["optimizer"]
    if momentum and "momentum" in optimizer:
        tree["compressor"]["momentum"] = 0.0
        optimizer["momentum"] = momentum
        optimizer["weight_decay"] = decay_beside(momentum, optimizer["weight_decay"], optimizer["kind"])
    return tree


def in_compressor(spec: RunSpec) -> dict[str, Any]:
    """A spec's tree in which momentum is the compressor's part; its method must be a sparse one.

    Raises:
        ValueError: the optimizer's momentum is of a form that a compressor's has not.
    """
    tree = spec.model_dump(mode="json")
    optimizer = tree["training"]["optimizer"]
    momentum = optimizer.get("momentum", 0.0)
    if momentum:
        if optimizer["nesterov"]:
            raise ValueError(
                "training.optimizer.nesterov = True: the compressor's momentum has no Nesterov form"
            )
        tree["compressor"]["momentum"] = momentum
        optimizer["momentum"] = 0.0
        if optimizer["kind"] in _CARRIES_DECAY:
            # Without a quotient's rounding error: there and back, below, is the same number.
            optimizer["weight_decay"] = rounded(optimizer["weight_decay"] / (1 - momentum), 15)
    return tree


def decay_beside(momentum: float, decay: float, optimizer: str) -> float:
    """What a decay beside momentum in the compressor is where the momentum is the optimizer's.

    Args:
        momentum: 0 to 1.
        decay: of the weights.
        optimizer: its kind.
    """
    return rounded(decay * (1 - momentum), 12) if optimizer in _CARRIES_DECAY else decay
