"""Evaluates a model on the test examples, with the same bits for any number of workers.

The examples are cut into blocks of one size, whatever the number of workers, and workers get whole blocks. An
example's loss is float32, as the model computes it. The sums of a block, and of the blocks in order, are
float64. So the number of workers decides only which worker computes a block. A block's outputs may depend on
the kind of CPU, and on the number of threads.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data.examples import Examples
from ..replica.precision import Precision, autocast
from ..tasks.task import Task

Evaluation = Mapping[str, float]
"""By the name of a task's metric."""


def evaluate(
    model: nn.Module,
    task: Task,
    examples: Examples,
    rank: int,
    workers: int,
    device: torch.device,
    precision: Precision = "fp32",
    block_size: int = 250,
) -> Evaluation:
    """Evaluates the model, each worker on its blocks of the test part; every worker gets the whole result.

    An example's outputs must not depend on the rest of its batch. Another `block_size`, in examples, may
    change the last bits.
    """
    by_block = {}
    blocks = -(-len(examples) // block_size)
    model.eval()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for block in range(rank, blocks, workers):
            first = block * block_size
            numbers = np.arange(first, min(first + block_size, len(examples)), dtype=np.int64)
            inputs, targets = examples.batch(numbers, None)
            with autocast(precision, device):
                outputs = model(inputs.to(device))
            sums = task.sums(outputs, targets.to(device))
            by_block[block] = torch.stack(
                [torch.as_tensor(value, dtype=torch.float64).cpu() for value in sums]
            )
    model.train()
    return task.evaluation(_added(by_block, blocks, device), len(examples))


def _added(by_block: Mapping[int, Tensor], blocks: int, device: torch.device) -> list[float]:
    """The sums of all workers' blocks, added in the order of the blocks."""
    # A worker without a block learns from the others how many sums there are.
    width = torch.tensor([max((len(sums) for sums in by_block.values()), default=0)], device=device)
    dist.all_reduce(width, dist.ReduceOp.MAX)
    rows = torch.zeros((blocks, int(width)), dtype=torch.float64)
    for block, sums in by_block.items():
        rows[block] = sums
    rows = rows.to(device)
    dist.all_reduce(rows)  # exact: of a row all workers but one have zeros
    totals = [0.0] * int(width)
    for row in rows.tolist():
        totals = [total + value for total, value in zip(totals, row, strict=True)]
    return totals
