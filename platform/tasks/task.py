"""The interface of tasks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from .metric import Metric


class Task(ABC):
    """What a model is trained for. Write your own as a subclass; it must not keep state between calls.

    Evaluations are computed from sums over blocks of test examples, which workers share. Every metric must
    therefore follow from sums.
    """

    metrics: Sequence[Metric]
    """The metrics of an evaluation; the first one counts. Names must differ, and one must be `loss`."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, which is minimized.

        Args:
            outputs: what the model returned for the batch's inputs.
            targets: of the batch, [examples, ...].

        Returns:
            A scalar. The loss of a batch must equal the mean of the losses of its parts, weighted by
            examples.
        """

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor | float]:
        """The sums that a block of test examples adds to an evaluation: always the same number of scalars."""

    @abstractmethod
    def evaluation(self, sums: Sequence[float], examples: int) -> Mapping[str, float]:
        """The metrics of all test examples.

        Args:
            sums: what `sums` returned, added over all blocks in float64.
            examples: number of test examples.

        Returns:
            Values by metric, one for each of `metrics`.
        """

    def terms(self, targets: Tensor) -> int:
        """The number of losses that `loss` averages; `loss_reduction: sum` multiplies the loss by it."""
        return len(targets)
