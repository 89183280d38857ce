"""The tasks that come with taugrad: classification, language models, regression."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..spec.tasks import Regression
from .metric import ACCURACY, BITS_PER_BYTE, ERROR, LOSS, PERPLEXITY, Metric
from .task import Task


class ClassificationTask(Task):
    """Outputs are scores, float [examples, classes]; targets int64 [examples]."""

    metrics = (ACCURACY, LOSS)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy in nats."""
        return nn.functional.cross_entropy(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor | float]:
        """The number of correctly classified examples, and the sum of losses."""
        losses = nn.functional.cross_entropy(outputs.float(), targets, reduction="none")
        return (outputs.argmax(1) == targets).sum(), losses.double().sum()

    def evaluation(self, sums: Sequence[float], examples: int) -> Mapping[str, float]:
        """See `Task.evaluation`; where the loss is NaN, the accuracy is too: scores of NaN choose class 0."""
        right, loss = sums
        return {
            ACCURACY.name: math.nan if math.isnan(loss) else right / examples,
            LOSS.name: loss / examples,
        }


_LARGEST = 700.0
"""exp of more is beyond float64."""


class LanguageModelTask(Task):
    """Outputs are scores, float [examples, positions, vocabulary]; targets int64 [examples, positions]."""

    def __init__(self, bytes_per_token: float | None) -> None:
        """Takes the test text's bytes for each of its tokens; None: not known, no bits per byte are given."""
        self._bytes_per_token = bytes_per_token
        self.metrics: Sequence[Metric] = (LOSS, PERPLEXITY) + (BITS_PER_BYTE,) * (bytes_per_token is not None)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy in nats, mean over the tokens."""
        return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def sums(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor | float]:
        """Losses of the tokens, and how many there are."""
        losses = nn.functional.cross_entropy(
            outputs.flatten(0, -2).float(), targets.flatten(), reduction="none"
        )
        return losses.double().sum(), float(targets.numel())

    def evaluation(self, sums: Sequence[float], examples: int) -> Mapping[str, float]:
        total, tokens = sums
        loss = total / tokens
        metrics = {LOSS.name: loss, PERPLEXITY.name: math.exp(min(loss, _LARGEST))}
        if self._bytes_per_token is not None:
            metrics[BITS_PER_BYTE.name] = loss / math.log(2) / self._bytes_per_token
        return metrics

    def terms(self, targets: Tensor) -> int:
        """Tokens."""
        return targets.numel()


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
