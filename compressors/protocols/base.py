"""The common base of the hook's protocols."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, which stubs do not name
from torch.futures import Future

from ..bucket.layout import PartTally
from ..bucket.ledger import Step
from ..errors import CompressionError, NonFiniteGradient, PeerLost, reaching
from ..method import Method
from .times import PassTimes

Fail = Callable[[CompressionError], CompressionError]
"""Records an error, and returns it."""


@dataclass(frozen=True)
class Bucket:
    """Gradients of some parameters, one after the other."""

    index: int
    buffer: Tensor
    """Floating point [elements], the gradients; at last the result."""
    names: list[str]
    """Of the parameters, in the order of the buffer."""
    sizes: list[int]
    """Elements of the buffer for each parameter: two real numbers for a complex one."""
    is_last: bool = False
    """Whether the thread that brings it has nothing left to do but to wait for the result."""
    earlier: Mapping[str, Tensor] = field(default_factory=dict)
    """By parameter, what an earlier pass has exchanged; it is not in the buffer."""
    scale: float | None = None
    """Of a loss's scaler, by which gradients were divided: the result is multiplied by it."""
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


class Reducer(ABC):
    """One way to synchronize buckets.

    Attributes:
        works: collectives of the backward pass. They are held for one more step: if gloo's thread freed them,
            their tensors would need Python's lock in a thread that may run during the interpreter's shutdown,
            and the process would abort.
        averages: whether the result is the mean of the buckets themselves. What an earlier pass has exchanged
            may then stay in them: its mean is what it is.
    """

    averages = False

    def __init__(self, config: Method, group: dist.ProcessGroup, fail: Fail) -> None:
        self._group, self._fail = group, fail
        self._reduction, self._nonfinite = config.reduction, config.nonfinite
        self._workers = dist.get_world_size(group)
        self._lock = Lock()  # several buckets' callbacks may run at once
        self._times = PassTimes()
        self.works: list[dist.Work] = []

    @abstractmethod
    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        """Starts to combine all workers' gradients; see `hook.compressed_allgather`.

        The result is the mean or sum of them, and `bucket.earlier`. The ledger, `step`, is complete when the
        future of the pass's last bucket is.
        """

    def begin(self, iteration: int) -> None:
        """Begins a backward pass, with the number of steps before it."""
        self.works, self._times = [], PassTimes()

    def left(self, step: Step) -> None:
        """Called when the hook of the last bucket returns; `step` is the ledger of the backward pass."""
        self._times.left(step)

    def settle(self, *, skipped: bool, stepped: Set[str]) -> None:  # noqa: B027 (stateless by default)
        """Ends a step. If it is skipped, what was sent goes back to where it was taken from.

        Calling it again has no effect.

        Args:
            skipped: whether the step was not finite.
            stepped: parameters that an optimizer has stepped all the same: what was sent of them stays sent.
        """

    def state_dict(self) -> dict[str, Any] | None:
        """State besides `Feedback`: plain numbers and tensors; None if there is none."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 (who has none restores none)
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
        """Counts all-reduces of so many elements of each parameter.

        What a ring of them moves is known by formula: the transport does not report it.
        """
        elements, workers = sum(sent.values()), self._workers
        nbytes = bucket.buffer.element_size() * elements
        step.elements += bucket.buffer.numel() * workers
        step.sent += elements * workers
        step.paper_bits += 32 * elements * workers
        step.wire_bytes += nbytes * workers
        step.received_bytes += 2 * (workers - 1) * nbytes
        step.messages += 2 * (workers - 1) * workers
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
