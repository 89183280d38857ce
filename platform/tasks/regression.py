"""Numbers, or classes as one-hot numbers (Oland and Raj, section 4)."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .base import Task
from .config import Regression
from .metric import ACCURACY, ERROR, Metric


class RegressionTask(Task):
    """Outputs are float [examples, numbers]; targets of that shape, or int64 [examples], classes."""

    def __init__(self, config: Regression, *, classes: bool) -> None:
        """Takes which loss, and whether targets are classes."""
        self._error = nn.functional.mse_loss if config.loss == "squared" else nn.functional.l1_loss
        self._classes = classes
        self.metrics: Sequence[Metric] = (ACCURACY, ERROR) if classes else (ERROR,)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean error over examples and outputs."""
        return self._error(outputs, self._wanted(outputs, targets))

    def sums(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor | float]:
        """Examples whose largest output is their class's, where there are classes; errors of the examples."""
        outputs = outputs.float()
        errors = self._error(outputs, self._wanted(outputs, targets), reduction="none")
        errors = errors.flatten(1).double().mean(1).sum()
        return ((outputs.argmax(1) == targets).sum(), errors) if self._classes else (errors,)

    def evaluation(self, sums: Sequence[float], examples: int) -> Mapping[str, float]:
        """See `Task.evaluation`; where the error is NaN, the accuracy is too."""
        if math.isnan(sums[-1]):
            return {metric.name: math.nan for metric in self.metrics}
        return {metric.name: total / examples for metric, total in zip(self.metrics, sums, strict=True)}

    def _wanted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self._classes:
            return targets
        return nn.functional.one_hot(targets, outputs.shape[1]).to(
            outputs.dtype if outputs.dtype.is_floating_point else torch.float32
        )
