"""Accuracy and loss on the test examples, shared by the workers."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data.batches import evaluation_share

_BATCH = 500


@dataclass(frozen=True)
class Evaluation:
    """How good the model is."""

    accuracy: float
    """Share of the test examples classified rightly, 0 to 1."""
    loss: float
    """Mean cross entropy, in nats."""


@torch.no_grad()
def evaluate(model: nn.Module, inputs: Tensor, labels: Tensor, rank: int, workers: int) -> Evaluation:
    """Evaluates the model, each worker on its part; every worker gets the whole result.

    Args:
        model: maps float32 [batch, channels, height, width] to scores [batch, classes].
        inputs: all test inputs, float32 [examples, channels, height, width].
        labels: int64 [examples].
        rank: this worker.
        workers: how many share the examples.
    """
    share = evaluation_share(len(labels), rank, workers)
    mine, truth = inputs[share], labels[share]
    model.eval()
    correct = loss = torch.zeros((), dtype=torch.float64, device=inputs.device)
    for start in range(0, len(truth), _BATCH):
        scores = model(mine[start : start + _BATCH])
        expected = truth[start : start + _BATCH]
        correct = correct + (scores.argmax(1) == expected).sum()
        loss = loss + nn.functional.cross_entropy(scores, expected, reduction="sum")
    model.train()
    sums = torch.stack([correct, loss])
    dist.all_reduce(sums)
    right, total_loss = sums.tolist()
    return Evaluation(right / len(labels), total_loss / len(labels))
