"""From configuration to torch optimizers."""

from collections.abc import Iterable
from typing import assert_never

import pytorch_optimizer
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from . import config


def build_optimizer(settings: config.OptimizerConfig, parameters: Iterable[Parameter]) -> Optimizer:
    """The optimizer that a spec asks for.

    LAMB is the third version of its paper, which has no bias correction: the trust ratio takes out a common
    factor of a tensor's step. phi of Rae's section 2.5 is min(norm, 10).
    """
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
        case config.Lars():
            return pytorch_optimizer.LARS(
                parameters,
                lr=settings.lr,
                momentum=settings.momentum,
                nesterov=settings.nesterov,
                weight_decay=settings.weight_decay,
                trust_coefficient=settings.trust,
            )
        case config.Lamb():
            return pytorch_optimizer.Lamb(
                parameters,
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                weight_decouple=False,  # Rae's: the decay is part of what the trust ratio scales
                adam_debias=True,  # without it the library divides the rate by 1 - beta1^t, at first by 0.1
            )
        case _:
            assert_never(settings)
