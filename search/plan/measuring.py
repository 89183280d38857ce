"""Measures a spec's model and methods on this machine: a program of which several processes run together.

    python -m taugrad.search.plan.measuring RANK PROCESSES FILE

FILE is the process group's file store. The standard input has a `MeasureRequest`. Process 0 prints a
`Calibration`, or `{"problem": ...}`, as JSON.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, which stubs do not name
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors.methods import read_config
from taugrad.platform.data import load
from taugrad.platform.data.batch_plan import BatchPlan
from taugrad.platform.data.examples import Examples
from taugrad.platform.data.feeding import Batch
from taugrad.platform.models.building import build
from taugrad.platform.replica.replica import Replica
from taugrad.platform.tasks import build_task

from .calibrated import HALF, Bucket, Calibration, MeasureRequest, MethodWork
from .method_work import COMPRESSIONS, Gradient, Model, Stopwatch, half_work, measured_work

_WARM_UP, _LEAST_STEPS, _MOST_STEPS = 3, 5, 40
"""Steps that are not counted; how many are."""
_KEPT = 4
"""The gradients of this number of steps are compressed again and again."""


class _Watch:
    """A DDP hook that exchanges nothing, and records when each bucket was ready, and its parameters."""

    def __init__(self) -> None:
        self.began = 0.0
        self.ready: list[float] = []
        self.buckets: list[list[Tensor]] = []

    def begin(self) -> None:
        self.ready, self.buckets = [], []
        self.began = perf_counter()

    def hook(self, _: None, bucket: GradBucket) -> Future[Tensor]:
        self.ready.append(perf_counter() - self.began)
        self.buckets.append(bucket.parameters())
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done


def measure(
    request: MeasureRequest, alone: dist.ProcessGroup, sharing: dist.ProcessGroup, rank: int
) -> Calibration:
    """Measures the model and the methods; all processes must call this together.

    Args:
        request: what to measure.
        alone: a process group of this process.
        sharing: the process group of those that compute at the same time.
        rank: of the process.

    Raises:
        ValueError: data or model cannot be built.
    """
    spec = request.spec
    torch.set_num_threads(max(1, int(spec.workers.cpus)))
    data = load(spec.data)
    torch.manual_seed(spec.seed)
    model = build(spec.model, data.shape)
    task = build_task(spec.task, data.shape)
    plan = BatchPlan(spec.training, len(data.train))
    batch = max(1, spec.training.batch_size // spec.workers.count)
    replica = Replica(model, task, spec.training, spec.workers.count)
    names = {id(parameter): name for parameter, name in zip(replica.parameters, replica.names, strict=True)}
    watch, stopwatch = _Watch(), Stopwatch(sharing)
    ddp = DistributedDataParallel(
        model, process_group=alone, find_unused_parameters=spec.training.find_unused_parameters
    )
    ddp.register_comm_hook(None, watch.hook)
    whole, ends, ready = [], [], []
    kept: list[list[list[Tensor]]] = []
    position = plan.position(0)
    dist.barrier()
    if rank < request.sharing:
        until = 0.0
        for step in range(_WARM_UP + _MOST_STEPS):
            part = _batch(data.train, batch, step + rank * (_WARM_UP + _MOST_STEPS), spec.seed)
            stopwatch.together()
            watch.begin()
            replica.backward(part, ddp, ddp.no_sync)
            ended = perf_counter() - watch.began
            replica.step(position)
            took = perf_counter() - watch.began
            if step < _WARM_UP:
                until = perf_counter() + request.seconds
                continue
            whole.append(took)
            ends.append(took - ended)
            ready.append(watch.ready)
            kept = [
                *kept[1 - _KEPT :],
                [[_gradient(parameter) for parameter in bucket] for bucket in watch.buckets],
            ]
            if stopwatch.any(perf_counter() > until and len(whole) >= _LEAST_STEPS):
                break
        whole, ends = stopwatch.slowest(whole), stopwatch.slowest(ends)
        ready = [stopwatch.slowest(step) for step in ready]
    dist.barrier()
    works: dict[str, MethodWork] = {}
    gradients: list[Gradient] = []
    if rank < request.sharing:
        gradients = [
            Gradient([names[id(parameter)] for parameter in bucket], [step[number] for step in kept])
            for number, bucket in enumerate(watch.buckets)
        ]
        works[HALF] = half_work(gradients, stopwatch)
        feed = [_batch(data.train, batch, step, spec.seed) for step in range(COMPRESSIONS)]
        backward_s = median(whole) - median(ends)
        known = Model(replica, task, spec, alone, feed, backward_s, stopwatch)
    for line in request.methods:
        dist.barrier()
        if rank < request.sharing:
            works[line] = measured_work(read_config(line), gradients, known)
    dist.barrier()
    elements = sum(parameter.numel() for parameter in replica.parameters)
    assert dist.group.WORLD is not None
    everybody = Stopwatch(dist.group.WORLD)
    hops = 2 * (dist.get_world_size() - 1)  # each moves one of as many parts as there are processes
    moved = hops / dist.get_world_size()
    reduce_s, reduce_half_s = (
        _all_reduced(everybody, elements, dtype) / moved for dtype in (torch.float32, torch.float16)
    )
    message_s = _all_reduced(everybody, 1, torch.float32) / (2 * hops)  # of readiness, and of what is sent
    if not gradients:
        # This process only took part in all-reduces.
        gradients, whole, ends, ready = [Gradient([], [[torch.zeros(elements)]])], [1.0], [0.0], [[0.0]]
    state = replica.optimizer.state_dict()["state"]
    return Calibration(
        batch=batch,
        steps_an_epoch=position.iterations,
        compute_s=median(whole),
        optimizer_s=median(ends),
        buckets=tuple(
            Bucket(elements=gradient.elements, ready_s=median(step[number] for step in ready))
            for number, gradient in enumerate(gradients)
        ),
        optimizer_bytes=float(_tensor_bytes(state)),
        reduce_s=reduce_s,
        reduce_half_s=reduce_half_s,
        message_s=message_s,
        methods=works,
    )


def _all_reduced(everybody: Stopwatch, elements: int, dtype: torch.dtype) -> float:
    """Seconds that all processes take for an all-reduce on this machine."""
    tensor = torch.zeros(elements, dtype=dtype)
    return everybody.seconds_of(lambda: dist.all_reduce(tensor))


def _gradient(parameter: Tensor) -> Tensor:
    """A copy [numel] of a parameter's gradient."""
    return (
        torch.zeros_like(parameter).flatten() if parameter.grad is None else parameter.grad.flatten().clone()
    )


def _batch(examples: Examples, count: int, number: int, seed: int) -> Batch:
    """A worker's batch. Examples are drawn at random, because they may be sorted by class."""
    indices = np.random.default_rng([seed, number]).integers(len(examples), size=count)
    inputs, targets = examples.batch(indices, None)
    return Batch(inputs, targets, 1.0)


def _tensor_bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size() if tree.numel() > 1 else 0
    return sum(map(_tensor_bytes, tree.values())) if isinstance(tree, dict) else 0


def main(arguments: Sequence[str]) -> None:
    """Measures, and prints the result."""
    rank, processes = int(arguments[0]), int(arguments[1])
    sys.path.insert(0, str(Path.cwd()))  # a user's own models and data
    request = MeasureRequest.model_validate_json(sys.stdin.read())
    dist.init_process_group("gloo", init_method=f"file://{arguments[2]}", rank=rank, world_size=processes)
    groups = [dist.new_group([rank_of_group]) for rank_of_group in range(processes)]
    computing = dist.new_group(list(range(request.sharing)))
    try:
        output = measure(request, groups[rank], computing, rank).model_dump_json()
    except ValueError as problem:  # on every process alike
        output = json.dumps({"problem": str(problem)})
    if rank == 0:
        print(output, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
