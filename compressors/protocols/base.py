"""The common base of the hook's protocols, and plain all-reduce."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from threading import Lock
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.feedback import Feedback
from ..bucket.ledger import Step, Traffic
from ..errors import CompressionError, NonFiniteGradient, PeerLost, reaching
from ..exchange.addresses import backends_of
from ..gloo_threads import Once
from ..methods import Method
from ..methods.local import PatternName
from ..ops.parts import PartTally
from ..spans import RECORDER, Interval, difference, duration, intersection, union
from ..torch_internals import GradBucket

Fail = Callable[[CompressionError], CompressionError]
"""Records an error, and returns it."""


@dataclass(frozen=True)
class Options:
    """How gradients are exchanged; of methods that send messages."""

    pattern: PatternName | None = None
    """Who sends what to whom. None: collective where messages have a fixed size, parameters are on GPUs and
    the group has NCCL, without a key; otherwise allgather."""
    sites: Sequence[Sequence[int]] | None = None
    """For hierarchical, the ranks of each site."""
    downlink: Method | None = None
    """For sharded and parameter_server, what sums are compressed with on their way to the workers; None: as
    gradients, without momentum."""
    key: bytes | None = None
    """That all workers share, if messages are to be encrypted and authenticated."""
    threads: int | None = None
    """Number of CPU threads for a pass; None: as many as torch uses."""
    hold_back_zeros: bool = False
    """Send nothing for a parameter whose gradient is zero everywhere."""
    model_sizes: Mapping[str, int] = field(default_factory=dict)
    """By name, the elements of the parameters of which workers have shards."""


@dataclass(frozen=True)
class Bucket:
    """Gradients of some parameters, one after the other."""

    index: int
    buffer: Tensor
    """Floating point [elements], the gradients; at last the result."""
    names: list[str]
    """Names of the parameters, in the order of the buffer."""
    sizes: list[int]
    """Elements of the buffer for each parameter: two real numbers for a complex one."""
    is_awaited: bool = False
    """Whether the thread that brings it has nothing left to do but to wait for the result."""
    earlier: Mapping[str, Tensor] = field(default_factory=dict)
    """By parameter, what an earlier pass has exchanged; it is not in the buffer."""
    scale: float | None = None
    """Scale of a loss's scaler, by which gradients were divided: the result is multiplied by it."""
    ddp: GradBucket | None = None
    """DDP's own, where it is one."""
    series: int = 0
    """Added to the number of a message about it, where not every pass is about all buckets."""

    @property
    def title(self) -> str:
        """For timelines."""
        return f"bucket {self.index}"

    @property
    def shares(self) -> tuple[Tensor, ...]:
        """Each parameter's share of the buffer, [size]."""
        return torch.split(self.buffer, self.sizes)

    def add_earlier(self, times: float) -> None:
        """Adds so many times what an earlier pass has exchanged to the buffer."""
        if not self.earlier or self.ddp is None:
            return
        # DDP lays a complex gradient out as real numbers, but gives it the shape of the complex one.
        for name, parameter, share, gradient in zip(
            self.names, self.ddp.parameters(), self.shares, self.ddp.gradients(), strict=True
        ):
            earlier = self.earlier.get(name)
            if earlier is None:
                continue
            if earlier.is_cuda:  # a callback runs on a stream of its own
                earlier.record_stream(torch.cuda.current_stream(earlier.device))
            if parameter.is_complex():
                whole = torch.view_as_complex(share.view(-1, 2))
                whole.as_strided(parameter.size(), parameter.stride()).add_(earlier, alpha=times)
            else:
                gradient.add_(earlier, alpha=times)


class PassTimes:
    """When messages of one backward pass were under way, when it waited, and when buckets were decoded.

    Two threads take part. The training thread computes gradients, compresses them, and waits: in the hook,
    and after the last bucket until DDP has everything. A thread beside it decodes what has arrived, during
    the backward pass or while the training thread waits. Time that both spend at once is counted once, for
    the training thread; this is only known at the end.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # the transport's threads call `arrived`
        self._open = 0
        """Buckets that are not finished."""
        self._left: float | None = None
        """When the last bucket's hook returned."""
        self._exchanges: list[Interval] = []
        self._held: list[Interval] = []
        """When the training thread did nothing but wait for a bucket."""
        self._decodes: list[Interval] = []

    def began(self) -> None:
        """A bucket's exchange starts."""
        with self._lock:
            self._open += 1

    def held(self, began: float) -> None:
        """The training thread has waited until now."""
        self._held.append((began, perf_counter()))

    def arrived(
        self, step: Step, handed_over: float, here: float, about: str, *, decoded: bool = True
    ) -> None:
        """A bucket is finished now: its message was handed over, and everybody's were here, at such times.

        It may have been decoded since then. The ledger is written when all buckets are finished.
        """
        now = perf_counter()
        RECORDER.add("exchange", "wire", handed_over, here, about)
        with self._lock:
            self._open -= 1
            self._exchanges.append((handed_over, here))
            if decoded:
                self._decodes.append((here, now))
            self._account(step)

    def left(self, step: Step) -> None:
        """The hook of the last bucket returns now: the pass then waits until all buckets are finished."""
        with self._lock:
            self._left = perf_counter()
            self._account(step)

    def _account(self, step: Step) -> None:
        if self._open or self._left is None or not self._exchanges:
            return
        done = max(ended for _, ended in [*self._exchanges, *self._decodes])
        held = union([*self._held, (self._left, max(self._left, done))])
        decodes = union(self._decodes)
        waits, holding = difference(held, decodes), intersection(decodes, held)
        step.exchange_s += duration(union(self._exchanges))
        step.blocked_s += duration(waits)
        step.decompress_s += duration(self._decodes)
        step.overlapped_decode_s += duration(decodes) - duration(holding)
        for began, ended in waits:
            RECORDER.add("wait", "compute", began, ended)
        for began, ended in holding:
            RECORDER.add("decode", "compute", began, ended)
        for began, ended in difference(decodes, held):
            RECORDER.add("decode", "wire", began, ended)


class Reducer(ABC):
    """One way to synchronize buckets.

    Attributes:
        works: collectives of the backward pass. They are held for one more step: if gloo's thread freed them,
            their tensors would need Python's lock in a thread that may run during the interpreter's shutdown,
            and the process would abort.
        averages: whether the result is the mean of the buckets themselves. What an earlier pass has exchanged
            may then stay in them: averaging identical values is a no-op.
        traffic: what went over each link, where messages are ours.
        downlink_feedback: what this worker has not sent yet of sums that it reduces for all; None where it
            reduces none.
        shards: names of the parameters in each shard that is compressed by itself.
    """

    averages = False
    downlink_feedback: Feedback | None = None
    shards: Sequence[Collection[str]] = ((),)

    def __init__(self, config: Method, group: dist.ProcessGroup, fail: Fail) -> None:
        self._group, self._fail = group, fail
        self._reduction, self._nonfinite = config.reduction, config.nonfinite
        self._workers = dist.get_world_size(group)
        self._lock = Lock()  # several buckets' callbacks may run at once
        self._times = PassTimes()
        self.works: list[dist.Work] = []
        self.traffic = Traffic(self._workers)

    @property
    def settings(self) -> dict[str, str]:
        """How gradients are exchanged, which must be equal on all workers: values by field."""
        return {}

    def open(self) -> None:  # noqa: B027 (stateless by default)
        """Connects to the other workers, once, before the first exchange; all must call this together.

        Raises:
            WorkersDisagree: on every worker, if one has another key.
            PeerLost: a worker does not connect in time.
        """

    def close(self) -> None:  # noqa: B027
        """Ends the connections, if there are any: those who wait for this worker learn it at once."""

    @abstractmethod
    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        """Starts to combine all workers' gradients; see `hook.compressed_allgather`.

        The result is the mean or sum of them, and `bucket.earlier`. The ledger, `step`, is complete when the
        future of the pass's last bucket is.
        """

    def begin(self, iteration: int) -> None:
        """Begins a backward pass, with the number of steps before it."""
        self.works, self._times = [], PassTimes()

    def on_hooks_done(self, step: Step) -> None:
        """Called when the hook of the last bucket returns; `step` is the ledger of the backward pass."""
        self._times.left(step)

    def end_step(self, *, skipped: bool, stepped: Set[str]) -> None:  # noqa: B027 (stateless by default)
        """Ends a step. If it is skipped, what was sent goes back to where it was taken from.

        Calling it again has no effect.

        Args:
            skipped: whether the step was not finite.
            stepped: parameters that an optimizer has stepped all the same: what was sent of them stays sent.
        """

    def state_dict(self) -> dict[str, Any] | None:
        """State besides `Feedback`: plain numbers and tensors; None if there is none."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restores what `state_dict` returned, whole; raises ValueError if it does not fit."""

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Notes as the failure that another worker was not reached inside."""
        try:
            with reaching():
                yield
        except PeerLost as problem:
            raise self._fail(problem) from problem.__cause__

    def _count_all_reduce(self, step: Step, bucket: Bucket, sent: Mapping[str, int]) -> None:
        """Counts all-reduces of so many elements of each parameter."""
        elements = sum(sent.values())
        step.elements += bucket.buffer.numel()
        step.sent += elements
        step.paper_bits += 32 * elements
        step.add_all_reduce(
            bucket.buffer.element_size() * elements, dist.get_rank(self._group), self._workers
        )
        step.count_layers(
            PartTally(name, size, sent[name], 0.0, paper_bits=32 * sent[name])
            for name, size in zip(bucket.names, bucket.sizes, strict=True)
        )

    def _look_for_nonfinite(self, step: Step, bucket: Bucket, summed: Tensor) -> None:
        """Refuses or records a sum that is not finite. A sum that merely overflows is checked again."""
        if isfinite(summed.sum().item()) or bool(torch.isfinite(summed).all()):
            return
        broken = [not bool(torch.isfinite(gradient).all()) for gradient in bucket.shares]
        parameter = bucket.names[broken.index(True)]
        if self._nonfinite == "refuse":
            raise self._fail(NonFiniteGradient(parameter, -1))
        with self._lock:
            step.skip(parameter, -1)


class AllReduce(Reducer):
    """Whole gradients, summed by the transport: what DDP does without a hook, counted."""

    def __init__(self, config: Method, group: dist.ProcessGroup, fail: Fail) -> None:
        super().__init__(config, group, fail)
        self.averages = self._reduction == "mean"

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        buffer = bucket.buffer
        # What was exchanged goes along, so that replicas stay equal whatever a script has made of it.
        bucket.add_earlier(1.0 if self._reduction == "mean" else 1.0 / self._workers)
        if self._reduction == "mean":
            buffer.mul_(1.0 / self._workers)  # DDP without a hook multiplies too, before it adds
        self._count_all_reduce(step, bucket, dict(zip(bucket.names, bucket.sizes, strict=True)))
        times, started = self._times, perf_counter()
        times.began()
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None
        self.works.append(work)

        def finish(arrived: Future[list[Tensor]]) -> Tensor:
            with self.reaching():
                summed = arrived.value()[0]
            times.arrived(step, started, perf_counter(), bucket.title, decoded=False)
            self._look_for_nonfinite(step, bucket, summed)
            return summed

        summed: Future[list[Tensor]] = work.get_future()
        return summed.then(Once(finish))


class BroughtExchange(Reducer):
    """An exchange that a method brings (`Method.exchange`), counted, and with its own memory."""

    def __init__(
        self,
        config: Method,
        group: dist.ProcessGroup,
        parameters: Mapping[str, Tensor],
        known: Mapping[str, Tensor],
        fail: Fail,
    ) -> None:
        """Prepares to synchronize `parameters`; raises ValueError where the method cannot take one."""
        super().__init__(config, group, fail)
        self._exchange = config.exchange(group, parameters, known)

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        assert bucket.ddp is not None, "refused for others"
        times, started = self._times, perf_counter()
        times.began()
        calls_in_order = backends_of(self._group).get(bucket.buffer.device.type) == "nccl"
        mean, sent, under_way = self._exchange.start(
            bucket.ddp, bucket.names, bucket.sizes, calls_in_order=calls_in_order
        )
        times.held(under_way)
        step.compress_s += under_way - started
        RECORDER.add("compress", "compute", started, under_way, bucket.title)
        self._count_all_reduce(step, bucket, sent)

        def finish(arrived: Future[Tensor]) -> Tensor:
            with self.reaching():
                mean = arrived.value()
            times.arrived(step, under_way, perf_counter(), bucket.title, decoded=False)
            self._look_for_nonfinite(step, bucket, mean)
            if self._reduction == "sum":
                mean.mul_(self._workers)
            bucket.add_earlier(1.0)  # `mean` is the bucket's buffer
            return mean

        return mean.then(Once(finish))

    def state_dict(self) -> dict[str, Any]:
        return self._exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._exchange.load_state_dict(state)
