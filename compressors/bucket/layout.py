"""What a bucket of gradients consists of, and what its messages are about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..wire.update import Segments
from .fixed_size import FixedSize

_SHORTEST_SLICE = 1024
"""Elements: parameters that would be cut into shorter slices are reduced by one worker each."""


class ParameterSlice(NamedTuple):
    """A range of one parameter's elements."""

    name: str
    ordinal: int
    """Index of the parameter."""
    start: int
    stop: int
    whole: int
    """Elements of the parameter."""

    @property
    def elements(self) -> int:
        """How many it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class Shard:
    """Some elements of the parameters, one slice after the other; another worker may reduce each shard."""

    start: int
    stop: int
    """Its place among all elements, shard after shard."""
    slices: tuple[ParameterSlice, ...]

    @classmethod
    def whole(cls, sizes: Mapping[str, int]) -> "Shard":
        """All elements of parameters of these sizes, by name; some may be empty."""
        pairs = enumerate(sizes.items())
        slices = tuple(ParameterSlice(name, ordinal, 0, size, size) for ordinal, (name, size) in pairs)
        return cls(0, sum(sizes.values()), slices)

    @property
    def elements(self) -> int:
        """How many it has."""
        return self.stop - self.start

    @property
    def ordinals(self) -> list[int]:
        """Ordinals of the parameters that it has elements of."""
        return [part.ordinal for part in self.slices]

    @property
    def names(self) -> list[str]:
        """Names of these parameters."""
        return [part.name for part in self.slices]

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Its slices of flat tensors [numel], one a parameter; views."""
        return [
            tensors[part.ordinal][part.start : part.stop] if part.elements < part.whole
            else tensors[part.ordinal]
            for part in self.slices
        ]  # fmt: skip

    def split(self, values: Tensor) -> list[Tensor]:
        """Its slices of all its elements; views."""
        return list(torch.split(values, [part.elements for part in self.slices]))


def cut(sizes: Mapping[str, int], shards: int) -> list[Shard]:
    """Cuts parameters of these sizes into ranges whose lengths differ by at most one (Krizhevsky's 1/K)."""
    starts = [0, *accumulate(sizes.values())]
    bounds = [starts[-1] * i // shards for i in range(shards + 1)]
    ranges = []
    for low, high in pairwise(bounds):
        slices = [
            ParameterSlice(name, ordinal, max(low - start, 0), min(high - start, size), size)
            for ordinal, (start, (name, size)) in enumerate(zip(starts, sizes.items(), strict=False))
            if size and start < high and start + size > low
        ]
        ranges.append(Shard(low, high, tuple(slices)))
    return ranges


def cut_parameters(sizes: Mapping[str, int], shards: int) -> list[dict[str, ParameterSlice]]:
    """Cuts each parameter into as many slices as there are shards, or gives it to one of these whole."""
    slices: list[dict[str, ParameterSlice]] = [{} for _ in range(shards)]
    for ordinal, (name, size) in enumerate(sizes.items()):
        bounds = [size * number // shards for number in range(shards + 1)]
        if size < shards * _SHORTEST_SLICE:
            bounds = [0 if number <= ordinal % shards else size for number in range(shards + 1)]
        for shard, (start, stop) in zip(slices, pairwise(bounds), strict=True):
            if start < stop:
                shard[name] = ParameterSlice(name, ordinal, start, stop, size)
    return slices


def shards_of(slices: Sequence[Mapping[str, ParameterSlice]], names: Sequence[str]) -> list[Shard]:
    """The shards of a bucket of these parameters, each of which is cut alike in whatever bucket it is."""
    shards, start = [], 0
    for of_shard in slices:
        here = tuple(
            of_shard[name]._replace(ordinal=ordinal) for ordinal, name in enumerate(names) if name in of_shard
        )
        stop = start + sum(part.elements for part in here)
        shards.append(Shard(start, stop, here))
        start = stop
    return shards


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
