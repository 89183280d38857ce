"""From configuration to torch optimizers and learning-rate schedules."""

from collections.abc import Iterable
from typing import assert_never

from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from . import config


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
        case config.Adam():
            kind = Adam if settings.kind == "adam" else AdamW
            return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
        case _:
            assert_never(settings)


def build_schedule(settings: config.ScheduleConfig, optimizer: Optimizer) -> LRScheduler:
    """The learning-rate schedule that a spec asks for; step it after each epoch."""
    match settings:
        case config.ConstantRate():
            return StepLR(optimizer, step_size=1, gamma=1.0)
        case config.StepDecay():
            return StepLR(optimizer, step_size=settings.epochs, gamma=settings.factor)
        case _:
            assert_never(settings)
