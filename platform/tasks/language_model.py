"""The next token at each position."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from .base import Task
from .metric import BITS_PER_BYTE, LOSS, PERPLEXITY, Metric

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
        """See `Task.evaluation`."""
        total, tokens = sums
        loss = total / tokens
        found = {LOSS.name: loss, PERPLEXITY.name: math.exp(min(loss, _LARGEST))}
        if self._bytes_per_token is not None:
            found[BITS_PER_BYTE.name] = loss / math.log(2) / self._bytes_per_token
        return found

    def terms(self, targets: Tensor) -> int:
        """Tokens."""
        return targets.numel()
