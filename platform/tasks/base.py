"""The interface of tasks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from .metric import Metric


class Task(ABC):
    """What a model is trained for. Your own is a subclass; it keeps nothing from one call to the next.

    An evaluation is put together from sums over blocks of test examples, which workers share: so every
    metric must follow from sums.
    """

    metrics: Sequence[Metric]
    """What an evaluation says; the first one counts. Names differ; one is `loss`."""

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, to learn from.

        Args:
            outputs: what the model returned for the batch's inputs.
            targets: of the batch, [examples, ...].

        Returns:
            A scalar. A batch cut into parts must have the mean of their losses, weighted by examples.
        """

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor | float]:
        """What a block of test examples adds to an evaluation.

        Returns:
            Always the same number of scalars.
        """

    @abstractmethod
    def evaluation(self, sums: Sequence[float], examples: int) -> Mapping[str, float]:
        """The metrics of all test examples.

        Args:
            sums: what `sums` returned, added over all blocks in float64.
            examples: how many test examples there are.

        Returns:
            By metric, one for each of `metrics`.
        """

    def terms(self, targets: Tensor) -> int:
        """How many losses `loss` is the mean of: with `loss_reduction: sum` it is multiplied by that."""
        return len(targets)
