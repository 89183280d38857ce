"""What a bucket of gradients consists of, and what its messages are about."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..ops.segments import Segments
from .fixed_size import FixedSize


class ParameterSlice(NamedTuple):
    """A range of one parameter's elements."""

    ordinal: int
    """Index of the parameter."""
    start: int
    stop: int
    whole: int
    """Elements of the parameter."""


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
