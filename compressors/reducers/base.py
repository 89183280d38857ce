"""What all ways to exchange a bucket's gradients have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.bucket import Bucket
from ..bucket.layout import ParameterSlice
from ..bucket.ledger import Step, Traffic
from ..errors import CompressionError, CorruptMessage, PeerLost, reaching
from ..methods import Method
from ..pattern_names import PatternName
from .pass_times import PassTimes

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


class Reducer(ABC):
    """One way to synchronize buckets.

    Attributes:
        works: collectives of the backward pass. They are held for one more step: if gloo's thread freed them,
            their tensors would need Python's lock in a thread that may run during the interpreter's shutdown,
            and the process would abort.
        averages: whether the result is the mean of the buckets themselves. What an earlier pass has exchanged
            may then stay in them: averaging identical values is a no-op.
        traffic: what went over each link, where messages are ours.
        reduces_shards: whether some workers reduce shards for all.
        shards: the slices of parameters in each shard that is compressed by itself, by name.
    """

    averages = False
    reduces_shards = False
    shards: Sequence[Mapping[str, ParameterSlice]] = ({},)

    def __init__(self, method: Method, group: dist.ProcessGroup, fail: Fail) -> None:
        self._group, self._fail = group, fail
        self._reduction, self._nonfinite = method.reduction, method.nonfinite
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
        """Starts to combine all workers' gradients; see `hook.compression_hook`.

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
    def noting_failures(self) -> Iterator[None]:
        """Notes as the failure that a worker was not reached inside, or that a message is not valid."""
        try:
            with reaching():
                yield
        except (PeerLost, CorruptMessage) as problem:
            raise self._fail(problem) from problem.__cause__
