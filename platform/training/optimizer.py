"""Builds torch optimizers from the configuration."""

from collections.abc import Iterable
from typing import assert_never

from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from . import config
from .adam import FrozenAdam, LambOptimizer


def build_optimizer(settings: config.OptimizerConfig, parameters: Iterable[Parameter]) -> Optimizer:
    """The optimizer that a spec asks for."""
    given = settings.model_dump(exclude={"kind", "freeze", "trust"})  # named as torch's arguments are
    match settings:
        case config.Sgd():
            return SGD(parameters, **given)
        case config.Adam(freeze=0):
            return (Adam if settings.kind == "adam" else AdamW)(parameters, **given)
        case config.Adam():
            return FrozenAdam(parameters, decoupled=settings.kind == "adamw", freeze=settings.freeze, **given)
        case config.Lars():
            import pytorch_optimizer  # noqa: PLC0415 - takes more than a second, and only LARS is from there

            return pytorch_optimizer.LARS(parameters, trust_coefficient=settings.trust, **given)
        case config.Lamb():
            return LambOptimizer(parameters, betas=(0.9, 0.999), eps=1e-6, largest_norm=10.0, **given)
        case _:
            assert_never(settings)
