"""What a bucket of gradients consists of, and what its messages are about."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import isnan
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..ops.segments import Numbers, Segments
from .fixed_size import FixedSize


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
    reached: float | None = None
    """In place of these what a share of them reaches, where that decides."""

    @property
    def elements(self) -> int:
        """numel."""
        return self.gradient.numel()


class ParameterSlice(NamedTuple):
    """A range of one parameter's elements."""

    ordinal: int
    """Index of the parameter."""
    start: int
    stop: int
    whole: int
    """Elements of the parameter."""


class Parts(list[Part]):
    """The parameters of a bucket. As long as they have the same tensors, this may be compressed again."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """Records tensors that stay where they are."""
        super().__init__(parts)
        self.names = [part.name for part in self]
        self.elements = [part.gradient.numel() for part in self]
        self.laid_out: dict[Segments, Any] = {}
        """What passes go by, of some of them."""

    def of(self, segments: Segments) -> list[Part]:
        """Those of some segments; itself if these are all."""
        return self if len(segments) == len(self) else [self[ordinal] for ordinal in segments.ordinals]


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


def by_parameter(tallies: Iterable[PartTally]) -> list[PartTally]:
    """Sums of the tallies of a parameter's slices, by name."""
    sums = []
    for name, group in groupby(sorted(tallies, key=lambda tally: tally.name), key=lambda tally: tally.name):
        whole, taus, weights = PartTally(name, 0, 0, 0.0), 0.0, 0
        for tally in group:
            whole.elements += tally.elements
            whole.sent += tally.sent
            whole.residual_squares += tally.residual_squares
            whole.paper_bits += tally.paper_bits
            if tally.tau is not None:
                taus, weights = taus + tally.tau * tally.elements, weights + tally.elements
        whole.tau = taus / weights if weights else None
        sums.append(whole)
    return sums


@dataclass(slots=True, eq=False)
class Tallies:
    """What the parameters of a bucket send: columns, which read as one record of each parameter."""

    names: Sequence[str]
    elements: Sequence[int]
    sent: Numbers
    residual_squares: NDArray[np.float64]
    taus: NDArray[np.float32]
    """NaN where there is none."""
    paper_bits: Numbers

    @classmethod
    def of(cls, parts: Parts) -> "Tallies":
        """Nothing yet."""
        sent, bits = np.zeros((2, len(parts)), np.int64)
        taus = np.full(len(parts), np.nan, np.float32)
        return cls(parts.names, parts.elements, sent, np.zeros(len(parts)), taus, bits)

    def __iter__(self) -> Iterator[PartTally]:
        taus = [None if isnan(tau) else tau for tau in self.taus.tolist()]
        columns = self.sent.tolist(), self.residual_squares.tolist(), taus, self.paper_bits.tolist()
        return map(PartTally, self.names, self.elements, *columns)


@dataclass(frozen=True, eq=False)
class Layout:
    """Which parameters of a bucket its messages are about. Every worker knows this without being told."""

    sent: Segments
    """Parameters that the method compresses: one message, if there are any."""
    whole: Segments
    """Parameters that are exempt: another message behind it, if there are any."""
    bucket_elements: int
    fixed: FixedSize | None = None
    """For messages of fixed size, which stay on the device: what stands where."""


def lay_out(sizes: Sequence[int], exempt: Sequence[bool]) -> Layout:
    """The layout of a bucket of parameters of these sizes, in order; those that are exempt are sent whole."""
    starts = [0, *accumulate(sizes)]
    segments = []
    for whole in (False, True):
        group = [ordinal for ordinal, size in enumerate(sizes) if size and exempt[ordinal] == whole]
        places = np.array([(starts[ordinal], sizes[ordinal]) for ordinal in group], np.int64).reshape(-1, 2)
        segments.append(Segments(tuple(group), places[:, 0].copy(), places[:, 1].copy()))
    sent, exempted = segments
    return Layout(sent, exempted, starts[-1])


@dataclass(frozen=True)
class MemoryOrder:
    """The order of a parameter's elements in its bucket, and that of its logical shape.

    DDP lays a gradient out as its parameter lies when the bucket is made: a `channels_last` weight by its
    strides. What is kept beside gradients has their order. What is saved has the order of the shape, since
    the model that loads it may lie otherwise.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Those of the parameter if it fills its memory without gaps and overlaps, otherwise those of its shape
    row by row: what DDP does."""

    @classmethod
    def of(cls, parameter: Tensor) -> "MemoryOrder":
        """As DDP would lay its gradient out now."""
        dense = torch.empty_like(parameter, device="meta").stride()
        if dense != parameter.stride():  # torch keeps the strides of what is dense, and of nothing else
            dense = torch.empty(parameter.shape, device="meta").stride()
        return cls(tuple(parameter.shape), dense)

    def shaped(self, flat: Tensor) -> Tensor:
        """What is [numel] in the bucket's order in its logical shape: where the order is the same, a view."""
        return flat.as_strided(self.shape, self.strides).contiguous()

    def flat(self, shaped: Tensor) -> Tensor:
        """A copy [numel], in the bucket's order, of a tensor of the logical shape."""
        flat = torch.empty(shaped.numel(), dtype=shaped.dtype, device=shaped.device)
        flat.as_strided(self.shape, self.strides).copy_(shaped)
        return flat
