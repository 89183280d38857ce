"""Builds a task from its config."""

import math
from typing import assert_never

import torch
from torch import Tensor, nn

from ..data.shape import Shape
from ..spec.tasks import Classification, CustomTask, LanguageModel, Regression, TaskConfig
from ..user_code import UserCodeError, call, import_object, told
from .builtin import ClassificationTask, LanguageModelTask, RegressionTask
from .metric import Metric
from .task import Task

_CONTRACT = "a task is a subclass of taugrad.platform.tasks.Task whose arguments are those of task.arguments"
_FITTING = {"classes": "classification", "tokens": "language_model", "numbers": "regression"}


def build_task(config: TaskConfig, shape: Shape) -> Task:
    """The task that a config describes, for data of a given shape.

    Raises ValueError: the data does not fit the task; UserCodeError: a custom task cannot be found or called,
    raised, or is no `Task`.
    """
    match config:
        case CustomTask():
            return _custom(config)
        case Classification() if shape.targets == "classes":
            return ClassificationTask()
        case LanguageModel() if shape.targets == "tokens":
            return LanguageModelTask(shape.bytes_per_token)
        case Regression() if shape.targets != "tokens":
            return RegressionTask(config, classes=shape.targets == "classes")
        case Classification() | LanguageModel() | Regression():
            raise ValueError(
                f"kind = {config.kind}: this data has {shape.targets} as targets; "
                f"choose {_FITTING[shape.targets]}"
            )
        case _:
            assert_never(config)


def _custom(config: CustomTask) -> Task:
    path = config.factory
    made = call(path, import_object(path), config.arguments, _CONTRACT)
    if not isinstance(made, Task):
        raise UserCodeError(path, f"it is a {type(made).__name__}; {_CONTRACT}")
    metrics = getattr(made, "metrics", ())
    if not metrics or not all(isinstance(metric, Metric) for metric in metrics):
        raise UserCodeError(path, f"its metrics are {metrics!r:.60}; give one or more taugrad Metric")
    names = [metric.name for metric in metrics]
    if "loss" not in names or len(set(names)) < len(names):
        raise UserCodeError(
            path, f"its metrics are {', '.join(names)}; names must differ, and one must be loss"
        )
    return made


def try_task(config: TaskConfig, task: Task, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """Evaluates a few examples with a user's own task, before workers do.

    Those that come with taugrad are left alone. Raises UserCodeError: it raised, or does not return what
    `Task` says.
    """
    if not isinstance(config, CustomTask):
        return
    path = config.factory
    try:
        with torch.no_grad():
            outputs = model.eval()(inputs)
            loss = task.loss(outputs, targets)
            sums = [float(value) for value in task.sums(outputs, targets)]
            metrics = task.evaluation(sums, len(targets))
    except Exception as error:  # whatever a user's task raises
        raise UserCodeError(path, f"for {len(targets)} examples it raised {told(error)}") from error
    finally:
        model.train()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise UserCodeError(path, f"its loss is {loss!r:.60}; give a tensor with one number, the mean")
    missing = {metric.name for metric in task.metrics} - set(metrics)
    if missing:
        raise UserCodeError(
            path, f"its evaluation has no {', '.join(sorted(missing))}, which its metrics name"
        )
    if not all(isinstance(value, float | int) and not math.isnan(value) for value in metrics.values()):
        raise UserCodeError(path, f"its evaluation is {dict(metrics)}; give numbers")
