"""A calibration: what is to be measured, and seconds and bytes of a model on this machine."""

from collections.abc import Sequence

from pydantic import Field

from taugrad.platform.config import Config
from taugrad.platform.spec import RunSpec

HALF = "fp16 all-reduce"
"""Torch's hook that all-reduces in 16 bits: the baseline of our compressors."""


class Bucket(Config):
    """A bucket of DDP, in the order in which gradients come out of the backward pass."""

    elements: int
    """Number of elements of its parameters."""
    ready_s: float
    """Seconds from the start of the step until its gradients are ready, without any exchange."""


class BucketWork(Config):
    """Seconds and bytes of a method for one bucket."""

    compress_s: float
    """Seconds to make one worker's message."""
    read_s: float
    """Seconds to read and add one message."""
    fill_s: float
    """Additional seconds to fill the bucket, however many messages there are."""
    nbytes: float
    """Bytes of one worker's message, headers included."""


class MethodWork(Config):
    """Seconds and bytes of a method for a gradient."""

    buckets: tuple[BucketWork, ...]
    """One for each bucket of the model."""
    kept_bytes: float = 0.0
    """Bytes of a worker's residuals, velocities and other state."""
    hook_s: float = 0.0
    """Additional seconds of a step in the code of the DDP hook."""
    all_reduces: int = 0
    """How many all-reduces a bucket takes, one after the other; 0 if messages go from all to all."""
    blocks: bool = False
    """Whether the backward pass waits for each bucket's exchange."""
    half: bool = False
    """Whether the all-reduce is in 16 bits."""

    @property
    def compress_s(self) -> float:
        """Seconds to compress all buckets."""
        return sum(bucket.compress_s for bucket in self.buckets)

    @property
    def read_s(self) -> float:
        """Seconds to read and add one message about all buckets."""
        return sum(bucket.read_s for bucket in self.buckets)

    @property
    def fill_s(self) -> float:
        """Seconds to fill all buckets."""
        return sum(bucket.fill_s for bucket in self.buckets)

    @property
    def nbytes(self) -> float:
        """Bytes of one worker's messages about all buckets."""
        return sum(bucket.nbytes for bucket in self.buckets)


class Calibration(Config):
    """A model on this machine, one worker with its own batch; medians of several steps."""

    batch: int
    """Examples of a worker in a step."""
    steps_an_epoch: int
    """Steps of an epoch with the spec's number of workers, for exchanges at the end of an epoch."""
    compute_s: float
    """Seconds of forward pass, backward pass and optimizer."""
    optimizer_s: float
    """Seconds of the optimizer in it."""
    buckets: tuple[Bucket, ...] = Field(min_length=1)
    """The gradient's buckets."""
    optimizer_bytes: float
    """The optimizer's state."""
    reduce_s: float
    """Processor seconds to move and add a float32 gradient in an all-reduce of two workers."""
    reduce_half_s: float
    """The same in 16 bits."""
    message_s: float = 0.0
    """Seconds that a small message takes from one process to another on this machine."""
    methods: dict[str, MethodWork]
    """By the compressor's line."""

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        return sum(bucket.elements for bucket in self.buckets)

    @property
    def backward_end_s(self) -> float:
        """Seconds from the beginning of a step until the backward pass is done."""
        return self.compute_s - self.optimizer_s

    def missing(self, lines: Sequence[str]) -> list[str]:
        """The methods that it has not measured."""
        return [line for line in lines if line not in self.methods]


class MeasureRequest(Config):
    """The arguments of a measurement."""

    spec: RunSpec
    methods: tuple[str, ...]
    """Lines of compressors."""
    sharing: int = 1
    """How many processes compute at the same time. The others only take part in all-reduces."""
    seconds: float = 3.0
    """How long steps are counted."""
