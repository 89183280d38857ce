"""Checkpoint tensors in an inference engine's memory: fused, sharded, padded, or in a kernel's order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .format import PATTERNS, Row
from .kernels import Piece, Steps
from .kernels.cpu import CpuPatching, advanced, change_of
from .weights import BITS

Positions = NDArray[np.int64]
"""Indices into a flattened checkpoint tensor, ascending."""
Sums = dict[tuple[str, Any], int]
"""Digests, or changes of these, by tensor and part. Ranks that have the same part have the same sum."""


class EngineRefused(RuntimeError):
    """What an engine is asked for cannot be done; all its ranks raise this, and what ran before runs.

    Attributes:
        names: of files that cannot be applied, so that others may be tried; None if no file is the reason.
        other_stream: whether they do not fit because they belong to another stream.
    """

    def __init__(self, reason: str, names: list[str] | None = None, other_stream: bool = False) -> None:
        super().__init__(reason)
        self.names, self.other_stream = names, other_stream


class Axis(NamedTuple):
    """A dimension of a part."""

    size: int
    source: int
    """Stride in the flattened checkpoint tensor."""
    target: int
    """Stride in the engine's memory."""


@dataclass(frozen=True, eq=False)
class EnginePart:
    """Elements of a checkpoint tensor, and where an engine has them."""

    memory: Tensor
    """[m], contiguous: a run of the engine's memory, of its dtype."""
    axes: tuple[Axis, ...]
    """Strides in the checkpoint descend; none where there is one element."""
    offset: int
    """Index of the first element in the flattened checkpoint tensor."""
    begin: int = 0
    """Index of the first element in `memory`, before `order`."""
    order: NDArray[np.int64] | None = None
    """[p]: element i of each p elements of memory lies at order[i] of these. `p` divides m."""

    @classmethod
    def of(cls, target: Tensor, source: Tensor) -> "EnginePart":
        """Creates the part that `target.copy_(source)` writes; source is a view of a whole checkpoint tensor.

        Raises:
            EngineRefused: the copy broadcasts, or source repeats elements.
        """
        if target.shape != source.shape:
            raise EngineRefused(f"{tuple(source.shape)} is copied to {tuple(target.shape)}")
        strides = zip(source.shape, source.stride(), target.stride(), strict=True)
        axes = sorted((Axis(*row) for row in strides if row[0] != 1), key=lambda axis: -axis.source)
        merged = list[Axis]()
        for axis in axes:
            if merged and merged[-1][1:] == (axis.size * axis.source, axis.size * axis.target):
                axis = axis._replace(size=axis.size * merged.pop().size)  # noqa: PLW2901
            merged.append(axis)
        for outer, inner in pairwise(merged):
            if outer.source < inner.size * inner.source:
                raise EngineRefused("a view of the checkpoint repeats elements")
        if any(axis.source < 1 for axis in merged):
            raise EngineRefused("a view of the checkpoint repeats elements")
        extent = 1 + sum((axis.size - 1) * axis.target for axis in merged)
        memory = target.detach().as_strided((extent,), (1,), target.storage_offset())
        return cls(memory, tuple(merged), int(source.storage_offset()))

    def in_order(self, parameter: Tensor, order: NDArray[np.int64]) -> "EnginePart":
        """The same part of a contiguous parameter whose elements a kernel has in another order."""
        begin = int(self.memory.storage_offset() - parameter.storage_offset())
        low, at = begin - begin % order.size, begin % order.size
        high = low + -(-(at + self.memory.numel()) // order.size) * order.size
        return EnginePart(parameter.detach().view(-1)[low:high], self.axes, self.offset, at, order)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(axis.size for axis in self.axes)

    @property
    def key(self) -> Any:
        """Equal on ranks that have the same elements."""
        return self.offset, *((axis.size, axis.source) for axis in self.axes)

    @property
    def _extent(self) -> int:
        """From its first element in the checkpoint tensor to behind the last one."""
        return 1 + sum((axis.size - 1) * axis.source for axis in self.axes)

    def locate(self, positions: Positions) -> tuple[Positions, Positions]:
        """Which of some positions this part has, and where they are in `memory`."""
        low, high = np.searchsorted(positions, (self.offset, self.offset + self._extent))
        rest, index = positions[low:high] - self.offset, np.full(high - low, self.begin, np.int64)
        inside = np.ones(rest.shape, np.bool_)
        for axis in self.axes:
            at, rest = (rest, rest * 0) if axis.source == 1 else np.divmod(rest, axis.source)
            inside &= at < axis.size
            index += at * axis.target
        chosen: Positions = np.flatnonzero(inside & (rest == 0))
        index = index[chosen]
        if self.order is not None:
            within = index % self.order.size
            index += self.order[within] - within
        return chosen + low, index

    def digest(self, threads: int) -> int:
        """The digest of its elements in memory, with the keys that they have in the checkpoint."""
        bits = self._in_checkpoint_order().view(BITS[self.memory.element_size()])
        values = self._strided(bits, self.begin, "target").cpu()
        if any(axis[1:] != (1, 1) for axis in self.axes):
            spread = torch.zeros(self._extent, dtype=values.dtype, device="cpu")  # zeros add nothing
            self._strided(spread, 0, "source").copy_(values)
            values = spread
        return CpuPatching(threads).digest([Piece(values.view(-1), self.offset, False)])[0]

    def write(self, whole: Tensor) -> None:
        """Writes the elements of a flattened checkpoint tensor, of any dtype, to memory."""
        memory = self._in_checkpoint_order()
        target = self._strided(memory, self.begin, "target")
        target.copy_(self._strided(whole, self.offset, "source").to(target.dtype))
        if self.order is not None:
            self.memory.view(-1, self.order.size)[:, self.order] = memory.view(-1, self.order.size)

    def equals(self, whole: Tensor) -> bool:
        """Whether memory has the bits of a flattened checkpoint tensor, converted to its dtype."""
        target = self._strided(self._in_checkpoint_order(), self.begin, "target")
        source = self._strided(whole, self.offset, "source").to(target.dtype)
        return np.array_equal(_patterns(target.cpu()), _patterns(source))

    def _in_checkpoint_order(self) -> Tensor:
        """Memory, or a copy of it where a kernel has another order."""
        if self.order is None:
            return self.memory
        return self.memory.view(-1, self.order.size)[:, self.order].view(-1)

    def _strided(self, flat: Tensor, begin: int, strides: str) -> Tensor:
        """Its elements in a flattened tensor, in the order of the checkpoint."""
        sizes, steps = [axis.size for axis in self.axes], [getattr(axis, strides) for axis in self.axes]
        return flat.as_strided(sizes, steps, int(flat.storage_offset()) + begin)


def gather(memory: Tensor, index: Positions) -> Tensor:
    """Elements of memory, [k], on the CPU."""
    bits = BITS[memory.element_size()]  # so that every dtype can be indexed
    return memory.view(bits)[torch.from_numpy(index).to(memory.device)].cpu().view(memory.dtype)


def scatter(memory: Tensor, index: Positions, values: Tensor) -> None:
    """Writes elements to memory."""
    bits = BITS[memory.element_size()]
    memory.view(bits)[torch.from_numpy(index).to(memory.device)] = values.view(bits).to(memory.device)


def _patterns(values: Tensor) -> NDArray[Any]:
    width = values.element_size()
    patterns: NDArray[Any] = values.contiguous().view(BITS[width]).numpy().view(f"u{width}")
    return patterns


def merge(sums: Iterable[Sums]) -> Sums:
    """Joins sums of parts; raises EngineRefused if a part has two sums."""
    merged = Sums()
    for some in sums:
        for key, value in some.items():
            if merged.setdefault(key, value) != value:
                raise EngineRefused(f"the same part of {key[0]} has different bits in two places")
    return merged


class Write(NamedTuple):
    """Elements of memory, what they become, and what they were."""

    memory: Tensor
    at: Positions
    after: Tensor
    before: Tensor

    def fits(self) -> bool:
        """Whether memory has what they were."""
        return np.array_equal(_patterns(gather(self.memory, self.at)), _patterns(self.before))

    def apply(self) -> None:
        """Writes what they become."""
        scatter(self.memory, self.at, self.after)

    def undo(self) -> None:
        """Writes what they were."""
        scatter(self.memory, self.at, self.before)


@dataclass(frozen=True, eq=False)
class EngineTensor:
    """A tensor of a checkpoint, as an engine, or one rank of it, has it."""

    row: Row
    parts: tuple[EnginePart, ...]
    copy: Tensor | None = None
    """[n], the checkpoint's bits, where memory does not have them: of another dtype, reloaded, or unused."""
    tied_to: str = ""
    """The name of the tensor whose memory it has."""
    reloaded: bool = False
    """Whether the model's own loader takes it from `copy`: it has no parts."""

    @property
    def dtype(self) -> torch.dtype:
        """The checkpoint's."""
        dtype: torch.dtype = getattr(torch, self.row.dtype)
        return dtype

    @property
    def name(self) -> str:
        """Its name in the checkpoint."""
        return self.row.names[0]

    @property
    def _sources(self) -> tuple[EnginePart, ...]:
        """Where the checkpoint's bits are."""
        return self.parts if self.copy is None else (EnginePart.of(self.copy, self.copy),)

    def digests(self, threads: int) -> Sums:
        """The digest of each part; where a copy has the bits, of that, if memory follows it.

        Raises:
            ValueError: memory does not have what the copy says.
        """
        if self.copy is not None and not all(part.equals(self.copy) for part in self.parts):
            raise ValueError(f"{self.name} in the engine is not what its copy in the host's memory says")
        return merge({(self.name, part.key): part.digest(threads)} for part in self._sources)

    def step(self, row: Row, steps: Steps) -> tuple[list[Write], Sums]:
        """Computes what some patterns become, and what that adds to digests; writes nothing."""
        positions, floats = steps.positions.astype(np.int64) + row.first, PATTERNS[row.dtype].floats
        writes, changes, after = list[Write](), list[Sums](), torch.empty(0)
        for part in self._sources:
            chosen, index = part.locate(positions)
            before = gather(part.memory, index)
            old = _patterns(before)
            new = advanced(old, steps.steps[chosen], floats)
            after = torch.from_numpy(new).view(BITS[new.itemsize]).view(before.dtype)
            writes.append(Write(part.memory, index, after, before))
            changes.append({(self.name, part.key): change_of(old, new, positions[chosen])})
        if self.copy is not None:  # which has all positions
            for part in self.parts:
                chosen, index = part.locate(positions)
                values = after[torch.from_numpy(chosen)].to(part.memory.dtype)
                writes.append(Write(part.memory, index, values, gather(part.memory, index)))
        return writes, merge(changes)


def missing(tensors: Mapping[str, EngineTensor], keys: set[tuple[str, Any]]) -> list[str]:
    """Names of tensors some of whose elements no rank has; `keys` are those of all ranks' parts."""
    found = dict.fromkeys(tensors, 0)
    for name, key in keys:
        found[name] += prod(size for size, _ in key[1:])
    return [name for name, tensor in tensors.items() if found[name] != tensor.row.size]
