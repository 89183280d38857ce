"""What a bucket of gradients consists of, and what its messages are about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..ops.segments import Segments


@dataclass(slots=True)
class Part:
    """One parameter's share of a bucket."""

    name: str
    gradient: Tensor
    """Floating point [numel], contiguous, in the bucket."""
    residual: Tensor | None = None
    """float32 [numel] on the same device; None if what is not sent is dropped."""
    velocity: Tensor | None = None
    """float32 [numel] on the same device, if momentum is corrected; otherwise None."""
    rms: float | None = None
    """Root mean square of the loss's gradient, if something else is sent instead, such as weights."""
    magnitudes: NDArray[np.float32] | None = None
    """Finite magnitudes of a sample of residual + gradient, on the host, where they decide what is sent."""

    @property
    def elements(self) -> int:
        """numel."""
        return self.gradient.numel()


@dataclass(slots=True)
class PartTally:
    """What one parameter sent."""

    name: str
    elements: int
    sent: int
    residual_squares: float
    tau: float | None = None
    """The threshold that was used; None for rules without one."""
    paper_bits: int = 0
    """Value bits of what was sent."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Which parameters of a bucket its messages are about. Every worker knows this without being told."""

    sent: Segments
    """Parameters that the method compresses: one message, if there are any."""
    whole: Segments
    """Parameters that are exempt: another message behind it, if there are any."""
    bucket_elements: int


def lay_out(sizes: Sequence[int], exempt: Callable[[int], bool]) -> Layout:
    """The layout of a bucket.

    Args:
        sizes: elements of its parameters, in their order.
        exempt: by ordinal, whether a parameter is sent whole.
    """
    starts = [0, *accumulate(sizes)]
    groups: tuple[list[int], list[int]] = [], []
    for ordinal, size in enumerate(sizes):
        if size:
            groups[exempt(ordinal)].append(ordinal)
    sent, whole = (
        Segments(
            tuple(group),
            np.array([starts[ordinal] for ordinal in group], np.int64),
            np.array([sizes[ordinal] for ordinal in group], np.int64),
        )
        for group in groups
    )
    return Layout(sent, whole, starts[-1])
