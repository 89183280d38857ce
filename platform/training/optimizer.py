"""Builds torch optimizers from the configuration."""

from collections.abc import Iterable
from typing import assert_never

from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from . import config
from .frozen_adam import FrozenAdam
from .lamb import Lamb


def build_optimizer(settings: config.OptimizerConfig, parameters: Iterable[Parameter]) -> Optimizer:
    """The optimizer that a spec asks for."""
    match settings:
        case config.Sgd():
            return SGD(
                parameters,
                lr=settings.lr,
                momentum=settings.momentum,
                nesterov=settings.nesterov,
                weight_decay=settings.weight_decay,
            )
        case config.Adam(freeze=0):
            kind = Adam if settings.kind == "adam" else AdamW
            return kind(
                parameters,
                lr=settings.lr,
                betas=settings.betas,
                eps=settings.eps,
                weight_decay=settings.weight_decay,
            )
        case config.Adam():
            return FrozenAdam(
                parameters,
                lr=settings.lr,
                betas=settings.betas,
                eps=settings.eps,
                weight_decay=settings.weight_decay,
                decoupled=settings.kind == "adamw",
                freeze=settings.freeze,
            )
        case config.Lars():
            import pytorch_optimizer  # noqa: PLC0415 - takes more than a second, and only LARS is from there

            return pytorch_optimizer.LARS(
                parameters,
                lr=settings.lr,
                momentum=settings.momentum,
                nesterov=settings.nesterov,
                weight_decay=settings.weight_decay,
                trust_coefficient=settings.trust,
            )
        case config.Lamb():
            return Lamb(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
        case _:
            assert_never(settings)
