"""One class for each example."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from .base import Task
from .metric import ACCURACY, LOSS


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
