"""Learning rate, weight decay and l1 of every iteration, as a function of where it lies in the run.

They are computed from the position and never from the last values: there is nothing to keep in a checkpoint,
no rounding adds up, and batches, iterations and epochs can have their say at once. (torch's schedulers
multiply what they find and count in one unit.)
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from ..data.batch_plan import Position
from ..spec import training as config

if TYPE_CHECKING:
    from torch.optim import Optimizer


def schedule_factor(schedule: config.ScheduleConfig, position: Position, warmed_up: float) -> float:
    """The factor of the learning rate at an iteration; `warmed_up` are those that the warm-up takes."""
    match schedule:
        case config.ConstantRate():
            return 1.0
        case config.StepDecay():
            return schedule.factor ** _changes(schedule, position)
        case config.Halving():
            return math.ldexp(1.0, -_changes(schedule, position))
        case config.ExponentialDecay():
            return schedule.factor**position.epoch
        case config.Cosine():
            whole = (schedule.iterations or position.total) - warmed_up
            part = min(1.0, max(0.0, position.done - warmed_up) / whole) if whole > 0 else 1.0
            return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * part)) / 2
        case _:
            assert_never(schedule)


def _changes(schedule: config.StepDecay | config.Halving, position: Position) -> int:
    if schedule.iterations:
        return position.done // schedule.iterations
    return position.epoch // schedule.epochs


def warmup_factor(warmup: config.WarmUp, position: Position) -> float:
    """What the learning rate is multiplied by: from `warmup.start` at the first iteration to 1 at the end."""
    if warmup.iterations:
        part = position.done / warmup.iterations
    elif warmup.epochs:
        part = (position.epoch + position.iteration / position.iterations) / warmup.epochs
    else:
        return 1.0
    return min(1.0, warmup.start + (1 - warmup.start) * part)


def same_decay(rate: float, decay: float, k: float, scaled_rate: float) -> float:
    """The weight decay at which one step decays weights as k steps did (Krizhevsky 2014, section 5).

    One step multiplies weights by 1 - rate * decay. The result d has 1 - scaled_rate * d = (1 - rate *
    decay)^k, for rates above 0, rate * decay below 1, and k above 0, not only whole ones. For small rates it
    is nearly k * rate / scaled_rate * decay: sqrt(k) * decay if the rate is multiplied by sqrt(k), and
    `decay` itself if it is multiplied by k. Momentum is left out of account.
    """
    return -math.expm1(k * math.log1p(-rate * decay)) / scaled_rate


@dataclass(frozen=True)
class Rate:
    """Learning rate, weight decay and factor of the l1 term of an optimizer step."""

    lr: float
    weight_decay: float
    l1: float


def rate_at(training: config.TrainingConfig, position: Position, workers: int) -> Rate:
    """Learning rate, weight decay and l1 of one iteration.

    The rate is the product of the optimizer's, schedule, warm-up and scaling; the schedule counts epochs from
    the start of the run, warm-up included. `position` has the iteration, its batch size, and how many of the
    workers share it where not all do.
    """
    optimizer, scaling, warmup = training.optimizer, training.scaling, training.warmup
    warmed_up = float(warmup.iterations or warmup.epochs * position.iterations)
    rate = (
        optimizer.lr
        * schedule_factor(training.schedule, position, warmed_up)
        * warmup_factor(warmup, position)
    )
    l1 = training.l1 * schedule_factor(training.l1_schedule, position, 0.0)
    if isinstance(scaling, config.NoScaling):
        return Rate(rate, optimizer.weight_decay, l1)
    if scaling.by == "batch":
        k = position.batch_size / (scaling.reference or training.batch_size)
    else:
        k = (position.workers or workers) / (scaling.reference or 1)
    scaled_rate = rate * (k if scaling.kind == "linear" else math.sqrt(k))
    if k == 1 or scaled_rate == 0 or not config.decays_weights(optimizer):
        return Rate(scaled_rate, optimizer.weight_decay, l1)
    return Rate(scaled_rate, same_decay(rate, optimizer.weight_decay, k, scaled_rate), l1)


def set_rate(optimizer: "Optimizer", rate: Rate) -> None:
    """Sets the rate of an optimizer's next step; all parameter groups have the same."""
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = rate.lr, rate.weight_decay
        if "l1" in group:
            group["l1"] = rate.l1
