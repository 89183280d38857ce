"""Measures seconds and bytes of a method on a model's gradients, in several processes at the same time.

Workers wait for each other in each step, so the seconds of the slowest process count.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.methods import CompressedMethod, Method, PowerSGD
from taugrad.compressors.ops import ops_for
from taugrad.compressors.wire.message import NonFinite
from taugrad.platform.data.feeding import Batch
from taugrad.platform.replica.replica import Replica
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.task import Task

from .calibrated import BucketWork, MethodWork

COMPRESSIONS, _COUNTED = 12, 6
"""Compressions of a gradient, until residuals have filled up, and how many of the last ones count."""
_MESSAGES = 4
"""Numbers of messages that are read together, to find the time per message and the time per bucket."""
_FACTORS_ALL_REDUCES = 3
"""PowerSGD's all-reduces for a bucket: one for what is not compressed, one for P, and one for Q."""


_REPEATS = 5


class Stopwatch:
    """Measures in all processes of a group, which must call it in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def together(self) -> None:
        """Waits for all processes."""
        if dist.get_world_size(self._group) > 1:
            dist.barrier(self._group)

    def any(self, condition: bool) -> bool:
        """Whether the condition holds in any process; the same on all."""
        return bool(self.slowest([float(condition)])[0])

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """The elementwise maximum over all processes, which must pass equally many."""
        most = torch.tensor(seconds, dtype=torch.float64)
        if dist.get_world_size(self._group) > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._group)
        return [float(second) for second in most]

    def seconds_of(self, do: Callable[[], object]) -> float:
        """The median seconds of the slowest process, after a warm-up."""
        taken = []
        for _ in range(1 + _REPEATS):
            self.together()
            started = perf_counter()
            do()
            taken.append(perf_counter() - started)
        return median(self.slowest(taken)[1:])


@dataclass(frozen=True)
class Gradient:
    """A bucket's parameters, and their gradients [numel] in several steps."""

    names: list[str]
    steps: list[list[Tensor]]

    @property
    def elements(self) -> int:
        """The number of elements of all parameters."""
        return sum(tensor.numel() for tensor in self.steps[0])


@dataclass(frozen=True)
class Model:
    """A model that one worker trains through a method's hook."""

    replica: Replica
    task: Task
    spec: RunSpec
    alone: dist.ProcessGroup
    """A group of this process only."""
    feed: Sequence[Batch]
    """COMPRESSIONS batches."""
    backward_s: float
    """Seconds of a forward and backward pass without any method."""
    watch: Stopwatch
    """The stopwatch of all processes that compute at once."""

    def hooked(self, method: Method) -> tuple[list[float], list[float], CompressionState]:
        """Trains a copy with the method's hook, without other workers.

        Returns:
            Seconds of the last _COUNTED forward and backward passes, and of compressing in them; the hook's
            state.
        """
        copy = deepcopy(self.replica.model)
        other = Replica(copy, self.task, self.spec.training.model_copy(update={"compile": False}), 1)
        unused = self.spec.training.find_unused_parameters
        ddp = DistributedDataParallel(copy, process_group=self.alone, find_unused_parameters=unused)
        state = CompressionState(ddp, method)
        ddp.register_comm_hook(state, compression_hook)
        whole, compressing = [], []
        for batch in self.feed:
            self.watch.together()
            started = perf_counter()
            other.backward(batch, ddp, ddp.no_sync)
            whole.append(perf_counter() - started)
            compressing.append(state.last_step.compress_s)
        slowest = self.watch.slowest
        return slowest(whole[-_COUNTED:]), slowest(compressing[-_COUNTED:]), state


def measured_work(method: Method, gradients: Sequence[Gradient], model: Model) -> MethodWork:
    """A method's work on gradients, bucket by bucket, and in its hook."""
    if isinstance(method, PowerSGD):
        return _factors(method, gradients, model)
    work = work_of(method, gradients, model.watch)
    if not isinstance(method, CompressedMethod):
        return work
    whole, _, _ = model.hooked(method)
    known = model.backward_s + work.compress_s + work.read_s + work.fill_s
    return work.model_copy(update={"hook_s": max(0.0, median(whole) - known)})


def work_of(method: Method, gradients: Sequence[Gradient], watch: Stopwatch) -> MethodWork:
    """A method's work on gradients, bucket by bucket."""
    if not isinstance(method, CompressedMethod):
        return MethodWork(
            buckets=tuple(
                BucketWork(compress_s=0, read_s=0, fill_s=0, nbytes=4 * gradient.elements)
                for gradient in gradients
            ),
            all_reduces=1,
        )
    buckets, kept = [], 0
    for bucket in gradients:
        elements = dict(zip(bucket.names, map(Tensor.numel, bucket.steps[0]), strict=True))
        worker = Compressor(method, Worker(ops_for(torch.device("cpu"))), Shard.whole(elements))
        seconds, sizes, payload = [], [], np.empty(0, np.uint8)
        for iteration in range(COMPRESSIONS):
            step = [gradient.clone() for gradient in bucket.steps[iteration % len(bucket.steps)]]
            watch.together()
            started = perf_counter()
            payload = worker.compress(step, iteration).payload
            seconds.append(perf_counter() - started)
            sizes.append(payload.size)
        total = torch.zeros(bucket.elements)
        one = _read_seconds(watch, worker, payload, 1, total)
        many = _read_seconds(watch, worker, payload, _MESSAGES, total)
        read_s = max(0.0, (many - one) / (_MESSAGES - 1))
        buckets.append(
            BucketWork(
                compress_s=median(watch.slowest(seconds[-_COUNTED:])),
                read_s=read_s,
                fill_s=max(0.0, one - read_s),
                nbytes=sum(sizes[-_COUNTED:]) / _COUNTED,
            )
        )
        feedback = worker.feedback
        kept += sum(
            4 * tensor.numel() for tensor in [*feedback.residuals.values(), *feedback.velocities.values()]
        )
    return MethodWork(buckets=tuple(buckets), kept_bytes=kept)


def _read_seconds(watch: Stopwatch, worker: Compressor, payload: Any, messages: int, total: Tensor) -> float:
    """Seconds to read this number of messages and to fill a bucket with their mean."""

    def read() -> None:
        incoming = [worker.read(payload) for _ in range(messages)]
        assert not any(isinstance(update, NonFinite) for update in incoming)
        worker.total(incoming, messages, total)

    return watch.seconds_of(read)


def half_work(gradients: Sequence[Gradient], watch: Stopwatch) -> MethodWork:
    """torch's fp16 hook: cast, all-reduced, cast back."""
    buckets = []
    for gradient in gradients:
        whole = torch.cat(gradient.steps[-1])
        narrow = whole.to(torch.float16)
        buckets.append(
            BucketWork(
                compress_s=watch.seconds_of(lambda whole=whole: whole.to(torch.float16).div_(2)),  # type: ignore[misc]
                read_s=0,
                fill_s=watch.seconds_of(lambda whole=whole, narrow=narrow: whole.copy_(narrow)),  # type: ignore[misc]
                nbytes=2 * gradient.elements,
            )
        )
    return MethodWork(buckets=tuple(buckets), all_reduces=1, half=True)


def _factors(method: PowerSGD, gradients: Sequence[Gradient], model: Model) -> MethodWork:
    """PowerSGD through its hook, with one worker; its time is divided among buckets by their elements."""
    _, compressing, state = model.hooked(method.model_copy(update={"start": 2}))
    elements = sum(gradient.elements for gradient in gradients)
    shares = [gradient.elements / elements for gradient in gradients]
    compress_s, nbytes = median(compressing), state.last_step.wire_bytes
    return MethodWork(
        buckets=tuple(
            BucketWork(compress_s=share * compress_s, read_s=0, fill_s=0, nbytes=share * nbytes)
            for share in shares
        ),
        kept_bytes=4 * elements + nbytes,
        all_reduces=_FACTORS_ALL_REDUCES,
        blocks=True,
    )
