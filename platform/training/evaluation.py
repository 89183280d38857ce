"""Accuracy and loss on the test examples: the same bits, however many workers share them.

The examples are cut into blocks of one size, whatever the number of workers, and whole blocks are dealt out.
An example's loss is float32, as the model computes it; the sum of a block, and that of the blocks in their
order, are float64. So the number of workers decides who computes a block, and nothing else. A block's scores
may depend on the kind of CPU, and on the number of threads.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BLOCK = 250
"""Examples that go through the model at once. Another number may change the last bits of a loss."""


@dataclass(frozen=True)
class Evaluation:
    """How good the model is."""

    accuracy: float
    """Share of the test examples classified rightly, 0 to 1."""
    loss: float
    """Mean cross entropy, in nats."""


def evaluate(model: nn.Module, inputs: Tensor, labels: Tensor, rank: int, workers: int) -> Evaluation:
    """Evaluates the model, each worker on its blocks; every worker gets the whole result.

    Args:
        model: maps float32 [batch, channels, height, width] to scores [batch, classes]. An example's scores
            must not depend on the rest of its batch.
        inputs: all test inputs, float32 [examples, channels, height, width].
        labels: int64 [examples].
        rank: this worker.
        workers: how many share the examples.
    """
    sums = _block_sums(model, inputs, labels, rank, workers)
    dist.all_reduce(sums)  # exact: of a row all workers but one have zeros
    right = loss = 0.0
    for block_right, block_loss in sums.tolist():
        right += block_right
        loss += block_loss
    return Evaluation(right / len(labels), loss / len(labels))


@torch.no_grad()
def _block_sums(model: nn.Module, inputs: Tensor, labels: Tensor, rank: int, workers: int) -> Tensor:
    """What this worker's blocks come to; arguments as `evaluate` has them.

    Returns:
        float64 [blocks, 2]: examples classified rightly, and the sum of the losses in nats; zeros for the
        blocks of other workers.
    """
    blocks = -(-len(labels) // _BLOCK)
    sums = torch.zeros((blocks, 2), dtype=torch.float64, device=inputs.device)
    model.eval()
    for block in range(rank, blocks, workers):
        part = slice(block * _BLOCK, (block + 1) * _BLOCK)
        scores, truth = model(inputs[part]), labels[part]
        losses = nn.functional.cross_entropy(scores, truth, reduction="none")
        sums[block, 0] = (scores.argmax(1) == truth).sum()
        sums[block, 1] = losses.double().sum()
    model.train()
    return sums
