"""Checkpoint tensors in an inference engine's memory: fused, sharded, padded, or in a kernel's order."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .format import PATTERNS, Row
from .kernels import KEY_BLOCK, Piece, Steps
from .kernels.cpu import CpuPatching, advanced, change_of, odd
from .weights import BITS

_CHUNK = 2**22
"""Elements of which indices are in memory at once."""

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
    """[p]: element i of each p elements of memory lies at order[i] of these."""

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
        return EnginePart(parameter.detach().view(-1), self.axes, self.offset, begin, order)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod([axis.size for axis in self.axes], dtype=np.int64))

    @property
    def key(self) -> Any:
        """Equal on ranks that have the same elements."""
        return self.offset, *((axis.size, axis.source) for axis in self.axes)

    def _is_run(self) -> bool:
        return self.order is None and all(axis[1:] == (1, 1) for axis in self.axes)

    def _in_memory(self, index: Positions) -> Positions:
        if self.order is None:
            return index
        low = index % self.order.size
        return index - low + self.order[low]

    def locate(self, positions: Positions) -> tuple[Positions, Positions]:
        """Which of some positions this part has, and where they are in `memory`."""
        extent = 1 + sum((axis.size - 1) * axis.source for axis in self.axes)
        low, high = np.searchsorted(positions, (self.offset, self.offset + extent))
        rest, index = positions[low:high] - self.offset, np.full(high - low, self.begin, np.int64)
        inside = np.ones(rest.shape, np.bool_)
        for axis in self.axes:
            at, rest = (rest, rest * 0) if axis.source == 1 else np.divmod(rest, axis.source)
            inside &= at < axis.size
            index += at * axis.target
        chosen: Positions = np.flatnonzero(inside & (rest == 0))
        return chosen + low, self._in_memory(index[chosen])

    def elements(self) -> Iterator[tuple[Positions, Positions]]:
        """Positions of all elements, in pieces, and where they are in `memory`."""
        for low in range(0, self.size, _CHUNK):
            rest = np.arange(low, min(low + _CHUNK, self.size))
            positions, index = np.full(rest.shape, self.offset), np.full(rest.shape, self.begin)
            for axis in reversed(self.axes):
                rest, at = np.divmod(rest, axis.size)
                positions += at * axis.source
                index += at * axis.target
            yield positions, self._in_memory(index)

    def digest(self, threads: int) -> int:
        """The digest of its elements in memory, with the keys that they have in the checkpoint."""
        width = self.memory.element_size()
        if self._is_run():
            bits = self.memory.cpu().view(BITS[width])
            return int(CpuPatching(threads).digest([Piece(bits, self.offset, False)])[0])
        total = 0
        for positions, index in self.elements():
            keys = odd((positions % KEY_BLOCK).astype(np.uint64))
            keys *= odd((KEY_BLOCK + positions // KEY_BLOCK).astype(np.uint64))
            total += int((_patterns(gather(self.memory, index)).astype(np.uint64) * keys).sum())
        return total % 2**64

    def _views(self, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Its elements in memory, without an order, and a checkpoint tensor's in the dtype of memory."""
        sizes, begin = [axis.size for axis in self.axes], int(self.memory.storage_offset()) + self.begin
        target = self.memory.as_strided(sizes, [axis.target for axis in self.axes], begin)
        offset = int(whole.storage_offset()) + self.offset
        source = whole.as_strided(sizes, [axis.source for axis in self.axes], offset)
        return target, source.to(self.memory.dtype)

    def write(self, whole: Tensor) -> None:
        """Writes the elements of a flattened checkpoint tensor, of any dtype, to memory."""
        if self.order is None:
            target, source = self._views(whole)
            target.copy_(source)
            return
        for positions, index in self.elements():
            scatter(self.memory, index, whole[torch.from_numpy(positions)].to(self.memory.dtype))

    def equals(self, whole: Tensor) -> bool:
        """Whether memory has the bits of a flattened checkpoint tensor, converted to its dtype."""
        if self.order is None:
            target, source = self._views(whole)
            return np.array_equal(_patterns(target.cpu()), _patterns(source))
        return all(
            np.array_equal(
                _patterns(gather(self.memory, index)),
                _patterns(whole[torch.from_numpy(positions)].to(self.memory.dtype)),
            )
            for positions, index in self.elements()
        )


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


def merge(sums: Iterable[Sums], *, add: bool = False) -> Sums:
    """Joins sums of parts; `add`: those of several runs of a part add up.

    Raises:
        EngineRefused: a part has two sums.
    """
    merged = Sums()
    for some in sums:
        for key, value in some.items():
            if add:
                merged[key] = merged.get(key, 0) + value
            elif merged.setdefault(key, value) != value:
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

    def digests(self, threads: int) -> Sums:
        """The digest of each part; where a copy has the bits, of that, and whether memory follows it.

        Raises:
            ValueError: memory does not have what the copy says.
        """
        if self.copy is None:
            return merge({(self.name, part.key): part.digest(threads)} for part in self.parts)
        if not all(part.equals(self.copy) for part in self.parts):
            raise ValueError(f"{self.name} in the engine is not what its copy in the host's memory says")
        return {(self.name, "copy"): EnginePart.of(self.copy, self.copy).digest(threads)}

    def step(self, row: Row, steps: Steps) -> tuple[list[Write], Sums]:
        """Computes what some patterns become, and what that adds to digests; writes nothing."""
        positions, floats = steps.positions.astype(np.int64) + row.first, PATTERNS[row.dtype].floats
        if self.copy is not None:
            before = gather(self.copy, positions)
            after, change = _advance(before, steps.steps, positions, floats)
            writes = [Write(self.copy, positions, after, before)]
            for part in self.parts:
                chosen, index = part.locate(positions)
                values = after[torch.from_numpy(chosen)].to(part.memory.dtype)
                writes.append(Write(part.memory, index, values, gather(part.memory, index)))
            return writes, {(self.name, "copy"): change}
        writes, changes = list[Write](), list[Sums]()
        for part in self.parts:
            chosen, index = part.locate(positions)
            before = gather(part.memory, index)
            after, change = _advance(before, steps.steps[chosen], positions[chosen], floats)
            writes.append(Write(part.memory, index, after, before))
            changes.append({(self.name, part.key): change})
        return writes, merge(changes)


def _advance(before: Tensor, steps: Any, positions: Positions, floats: bool) -> tuple[Tensor, int]:
    old = _patterns(before)
    new = advanced(old, steps, floats)
    return torch.from_numpy(new).view(BITS[new.itemsize]).view(before.dtype), change_of(old, new, positions)


def missing(tensors: Mapping[str, EngineTensor], keys: set[tuple[str, Any]]) -> list[str]:
    """Names of tensors some of whose elements no rank has; `keys` are those of all ranks' parts."""
    found = dict.fromkeys(tensors, 0)
    for name, key in keys:
        sizes = [tensors[name].row.size] if key == "copy" else [size for size, _ in key[1:]]
        found[name] += int(np.prod(sizes, dtype=np.int64))
    return [name for name, tensor in tensors.items() if found[name] != tensor.row.size]
