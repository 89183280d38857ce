"""What a host of network/plan.py does: steps of a model by each method, through DDP."""

from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.methods import PowerSGD, read_config
from taugrad.platform.data import Data, load
from taugrad.platform.data.batch_plan import BatchPlan
from taugrad.platform.data.feeding import Batch
from taugrad.platform.models.building import build
from taugrad.platform.replica.replica import Replica
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks import build_task
from taugrad.search.plan.calibrated import HALF

WARM_UP = 8
"""Steps in which DDP forms its buckets anew, connections speed up and tau is found."""
WINDOW = 4


def measure(spec: RunSpec, data: Data, method: str, steps: int) -> list[float]:
    """Seconds a step, means of WINDOW steps one after the other, of the slowest worker.

    Not of single steps: over a long link one worker may begin a step while another one still waits for it,
    so that long and short steps take turns on each.
    """
    torch.manual_seed(spec.seed)
    model, task = build(spec.model, data.shape), build_task(spec.task, data.shape)
    replica = Replica(model, task, spec.training, spec.workers.count)
    ddp = DistributedDataParallel(model)
    if method == HALF:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method != "none":
        config = read_config(method)
        if isinstance(config, PowerSGD):
            config = config.model_copy(update={"start": 2})
        ddp.register_comm_hook(CompressionState(ddp, config), compression_hook)
    position = BatchPlan(spec.training, len(data.train)).position(0)
    count = spec.training.batch_size // spec.workers.count
    rng = np.random.default_rng(dist.get_rank())
    ends = []
    for _ in range(WARM_UP + steps + 1):
        inputs, targets = data.train.batch(rng.integers(len(data.train), size=count), None)
        replica.backward(Batch(inputs, targets, 1.0), ddp, ddp.no_sync)
        replica.step(position)
        ends.append(perf_counter())
    seconds = torch.tensor(np.diff(ends[WARM_UP::WINDOW]) / WINDOW)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return [float(second) for second in seconds]


def measured(spec: dict[str, Any], methods: list[str], steps: int) -> dict[str, list[float]]:
    """The same of every method: a compressor's line, or torch's hook that all-reduces in 16 bits."""
    read = RunSpec.model_validate(spec)
    data = load(read.data)
    return {method: measure(read, data, method, steps) for method in methods}
