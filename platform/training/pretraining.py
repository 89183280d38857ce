"""Supervised pre-training, layer by layer (Strom 2015, section 3.3; Seide et al. 2011).

The first hidden layer is trained with an output layer of its own, then the first two with another one, and so
on until the model is whole. It takes little time and no communication.
"""

from collections.abc import Iterator
from copy import deepcopy
from itertools import count, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..data.batches import Draw, epoch_order
from ..data.examples import Examples
from ..spec.training import Pretraining
from ..tasks.task import Task


def pretrain(
    model: nn.Sequential,
    task: Task,
    examples: Examples,
    wanted: Pretraining,
    seed: int,
    device: torch.device,
) -> None:
    """Leaves pre-trained weights in a stack of fully connected layers, by plain SGD in float32.

    The model's layers are as `mlp` and `sigmoid_stack` stack them; of the training part some examples, drawn
    once, are seen. What it comes to follows from its arguments, so that all workers come to the same, up to
    the rounding of their machines. torch's random numbers go on as if it had not happened.
    """
    *hidden, last = _blocks(model)
    seen = epoch_order(len(examples), seed, 0)[: max(1, round(wanted.examples * len(examples)))]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for depth in range(1, len(hidden) + 1):
            outputs = last if depth == len(hidden) else _like(last, hidden[depth])
            net = nn.Sequential(*hidden[:depth], outputs).to(device)
            optimizer = torch.optim.SGD(net.parameters(), lr=wanted.lr)
            for indices, draw in islice(_batches(seen, wanted.batch_size, seed), wanted.iterations):
                inputs, targets = (tensor.to(device) for tensor in examples.batch(indices, draw))
                optimizer.zero_grad()
                task.loss(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()


def _blocks(model: nn.Sequential) -> list[nn.Sequential]:
    """The stack, cut before each fully connected layer but the first."""
    blocks: list[list[nn.Module]] = [[]]
    for layer in model:
        if isinstance(layer, nn.Linear) and any(isinstance(block, nn.Linear) for block in blocks[-1]):
            blocks.append([])
        blocks[-1].append(layer)
    return [nn.Sequential(*block) for block in blocks]


def _like(last: nn.Sequential, following: nn.Sequential) -> nn.Sequential:
    """An output layer in the place of the hidden one that will follow, as torch fills it."""
    outputs, hidden = last[0], following[0]
    assert isinstance(outputs, nn.Linear)
    assert isinstance(hidden, nn.Linear)
    return nn.Sequential(nn.Linear(hidden.in_features, outputs.out_features), *deepcopy([*last][1:]))


def _batches(seen: NDArray[np.int64], size: int, seed: int) -> Iterator[tuple[NDArray[np.int64], Draw]]:
    """Batches of the examples that are seen, epoch after epoch, without end."""
    for epoch in count():
        order = seen[epoch_order(len(seen), seed, epoch)]
        for start in range(0, len(order), size):
            yield order[start : start + size], Draw(seed, epoch)
