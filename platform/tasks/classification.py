"""One class for each example."""

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
        """See `Task.evaluation`."""
        right, loss = sums
        return {ACCURACY.name: right / examples, LOSS.name: loss / examples}
