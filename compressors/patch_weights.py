"""Dictionaries of tensors as the bit patterns that patches are about; how a patch is made and applied."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from .errors import CorruptMessage, PatchMismatch
from .ops.array import Bytes
from .ops.cpu.patching import CpuPatching, all_steps, bits_of, factor
from .ops.cuda.ops import CudaOps
from .ops.cuda.patching import CudaPatching
from .ops.interface import ops_for
from .ops.patching import PatchOps, Piece, Steps, Taken
from .wire.patch import PATTERNS, Change, Row, Table, read_changes, read_patch_table, write_patch

Weights = Mapping[str, Tensor]
"""Such as a state_dict: by name, tensors of any type and shape, or DTensors."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WHOLE = 2**64
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Entry:
    """One name's tensor, or this process's shard of it."""

    row: Row
    tensor: Tensor
    """As it was given."""
    local: Tensor
    """What is in this process, real."""
    bits: Tensor
    """[count * parts], contiguous: the same memory, or a copy where that is not contiguous."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Equal for tensors that are tied."""
        return self.local.data_ptr(), self.local.device, self.local.stride(), *self.row[1:]

    def pieces(self, row: Row) -> list[Piece]:
        """The pieces of a row that is a part of this one, or the same."""
        parts, floats = row.pattern.parts, row.pattern.floats
        begin, first = (row.first - self.row.first) * parts, row.first * parts
        return [
            Piece(self.bits[begin + low : begin + low + length], first + low, floats)
            for low, length in row.pieces()
        ]

    def owned(self, rank: int) -> bool:
        """Whether this process is the one, of those that have these elements, that publishes them."""
        if not isinstance(self.tensor, DTensor):
            return rank == 0
        at: Sequence[int] = self.tensor.device_mesh.get_coordinate() or []
        return all(
            each == 0
            for each, placement in zip(at, self.tensor.placements, strict=True)
            if isinstance(placement, Replicate)
        )

    def apart(self, bits: Tensor) -> "Entry":
        """The same with a copy of its bits, which is then all that it holds."""
        return Entry(self.row, bits, bits, bits)

    def empty(self) -> "Entry":
        """The same tensor, of which nothing is here."""
        return replace(self, row=self.row._replace(first=0, elements=0), bits=self.bits[:0])

    def write_back(self) -> None:
        """Copies the bits to the tensor, where they are not its memory."""
        if self.bits.numel() and self.bits.data_ptr() != self.local.data_ptr():
            self.local.copy_(self.bits.view(self.local.dtype).view(self.local.shape))


def entries_of(weights: Weights) -> dict[str, Entry]:
    """What a dictionary holds, by name, ascending.

    Raises:
        TypeError: something in it is no tensor of plain numbers.
        ValueError: a DTensor's shard is no run of its elements.
    """
    return {name: _entry(name, weights[name]) for name in sorted(weights)}


def _entry(name: str, tensor: Any) -> Entry:
    dtype = str(tensor.dtype).removeprefix("torch.") if isinstance(tensor, Tensor) else ""
    if dtype not in PATTERNS or tensor.layout is not torch.strided:
        what = f"a {tensor.layout} tensor of {tensor.dtype}" if dtype else f"a {type(tensor).__name__}"
        raise TypeError(
            f"weights[{name!r}] is {what}; patches are about strided tensors of {', '.join(PATTERNS)}"
        )
    local, first = _local(name, tensor.detach())
    row = Row((name,), dtype, tuple(tensor.shape), first, local.numel())
    local = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local.resolve_neg()
    return Entry(row, tensor, local, local.contiguous().reshape(-1).view(_BITS[row.pattern.width]))


def _local(name: str, tensor: Tensor) -> tuple[Tensor, int]:
    """What this process has of a tensor, and the number of the first element."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    local, offsets = tensor.to_local(), [0] * tensor.ndim
    shape: list[int] = list(tensor.shape)
    coordinate = tensor.device_mesh.get_coordinate()
    for dim, placement in enumerate(tensor.placements):
        if type(placement) not in (Shard, Replicate) or coordinate is None:
            raise ValueError(f"weights[{name!r}] is placed as {placement}; patches take Shard and Replicate")
        if isinstance(placement, Shard):
            chunk = -(-shape[placement.dim] // tensor.device_mesh.size(dim))
            begin = min(chunk * coordinate[dim], shape[placement.dim])
            offsets[placement.dim] += begin
            shape[placement.dim] = min(chunk, shape[placement.dim] - begin)
    strides = [prod(tensor.shape[i + 1 :]) for i in range(tensor.ndim)]
    first = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if tuple(shape) != tuple(local.shape) or (local.numel() and last - first + 1 != local.numel()):
        raise ValueError(
            f"weights[{name!r}]: the shard of shape {tuple(local.shape)} of {tuple(tensor.shape)} is no run "
            "of its elements; shard the first dimension"
        )
    return local, first if local.numel() else 0


def patching_for(device: torch.device, threads: int) -> PatchOps:
    """The passes on a device.

    Args:
        device: of the weights.
        threads: how many may share the CPU's work. No result depends on it.

    Raises:
        ImportError: it is a GPU, and CuPy is not installed.
        ValueError: weights cannot be compared there.
    """
    ops = ops_for(device, threads)
    return CudaPatching(ops) if isinstance(ops, CudaOps) else CpuPatching(ops)


def on_devices(
    pieces: Sequence[Piece], threads: int, run: Callable[[PatchOps, list[int]], Sequence[Result]]
) -> list[Result]:
    """The results of passes over pieces, by device, in the order of pieces."""
    devices, results = dict[torch.device, list[int]](), dict[int, Result]()
    for number, piece in enumerate(pieces):
        devices.setdefault(piece.tensor.device, []).append(number)
    for device, numbers in devices.items():
        results |= zip(numbers, run(patching_for(device, threads), numbers), strict=True)
    return [results[number] for number in range(len(pieces))]


def digest_of(entries: Mapping[str, Entry], threads: int) -> int:
    """The digest of weights: the sum of those of their tensors, each times its name's factor, modulo 2^64."""
    return _digest([(each.row, each) for each in entries.values()], threads)


def _digest(rows: Sequence[tuple[Row, Entry]], threads: int) -> int:
    places = {(row.first, entry.place): (row, entry.pieces(row)) for row, entry in rows}  # tied ones but once
    digests = dict(zip(places, _digests([pieces for _, pieces in places.values()], threads), strict=True))
    return sum(factors(row) * digests[row.first, entry.place] for row, entry in rows) % _WHOLE


def rows_digest(rows: Sequence[tuple[Row, Tensor]], threads: int) -> int:
    """The same of rows whose bits lie apart."""
    pieces = [
        [
            Piece(bits[low : low + length], row.first * row.pattern.parts + low, row.pattern.floats)
            for low, length in row.pieces()
        ]
        for row, bits in rows
    ]
    return (
        sum(factors(row) * each for (row, _), each in zip(rows, _digests(pieces, threads), strict=True))
        % _WHOLE
    )


def _digests(tensors: Sequence[Sequence[Piece]], threads: int) -> list[int]:
    """Of each tensor, by its pieces."""
    pieces = [piece for each in tensors for piece in each]
    found = iter(on_devices(pieces, threads, lambda ops, some: ops.digest([pieces[i] for i in some])))
    return [sum(next(found) for _ in each) for each in tensors]


def factors(row: Row) -> int:
    """What the digest of a tensor counts for: once for each of its names."""
    return sum(map(factor, row.names))


def require_same(due: Mapping[str, Row], found: Mapping[str, Row], whose: str) -> None:
    """Refuses weights of another model.

    Raises:
        PatchMismatch: names, types or shapes differ; it names the first tensor of which they do.
    """
    for name in sorted(due.keys() | found.keys()):
        if name not in found:
            raise PatchMismatch(name, f"{whose} have no tensor {name!r}")
        if name not in due:
            raise PatchMismatch(name, f"{whose} have a tensor {name!r} that should not be there")
        for what in ("dtype", "shape"):
            wanted, given = getattr(due[name], what), getattr(found[name], what)
            if wanted != given:
                raise PatchMismatch(name, f"{whose} have {name!r} with {what} {given}, not {wanted}")


class Made(NamedTuple):
    """A patch, and what is known of it."""

    data: bytes
    table: Table


def make(before: Mapping[str, Entry], after: Mapping[str, Entry], digest: int | None, threads: int) -> Made:
    """The patch from one state to another; `digest` is that of `before`, if it is known.

    Raises:
        PatchMismatch: they are not of one model, or other shards of it.
    """
    old, new = ({name: entry.row for name, entry in each.items()} for each in (before, after))
    require_same(old, new, "the weights after")
    for name, row in new.items():
        if row != old[name]:
            raise PatchMismatch(name, f"the weights after have another shard of {name!r}")
    rows = _rows(before, after)
    olds = [piece for row in rows for piece in before[row.names[0]].pieces(row)]
    news = [piece for row in rows for piece in after[row.names[0]].pieces(row)]
    news = [
        Piece(new.tensor.to(old.tensor.device), new.first, new.floats)
        for old, new in zip(olds, news, strict=True)
    ]
    found = on_devices(
        olds,
        threads,
        lambda ops, some: ops.compare(
            [olds[i] for i in some], [news[i] for i in some], digested=digest is None
        ),
    )
    weighed = [factors(row) for row in rows for _ in row.pieces()]
    if digest is None:
        digest = sum(by * each.digest for by, each in zip(weighed, found, strict=True)) % _WHOLE
    change = sum(by * each.change for by, each in zip(weighed, found, strict=True))
    table = Table(tuple(rows), sum(each.changed for each in found), digest, (digest + change) % _WHOLE)
    changes = []
    for old_piece, new_piece, each in zip(olds, news, found, strict=True):
        whole = each.changed > each.words.size
        steps = all_steps(old_piece, new_piece) if whole else each.steps
        changes.append(Change(None if whole else each.words, steps, partial(_bytes, new_piece)))
    return Made(write_patch(table, changes, threads), table)


def _bytes(piece: Piece) -> Bytes:
    data: Bytes = bits_of(piece).view(np.uint8)
    return data


def _rows(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[Row]:
    """What a patch is about; tensors that are tied, and were equal before, are one row."""
    tied = dict[Any, list[str]]()
    for name, entry in after.items():
        place: Any = entry.place if entry.row.elements else name
        first = before[tied[place][0]] if place in tied else before[name]
        if first.place != before[name].place and not torch.equal(first.bits, before[name].bits):
            place = name
        tied.setdefault(place, []).append(name)
    return [after[names[0]].row._replace(names=tuple(names)) for names in tied.values()]


class SparseTensor(NamedTuple):
    """The elements of one tensor that a patch changes."""

    name: str
    indices: Tensor
    """int32 [k] (int64 from 2^31 elements on), ascending, into the flattened tensor."""
    values: Tensor
    """[k], what they become, of the tensor's dtype."""


@dataclass(frozen=True, eq=False)
class Application:
    """A patch that fits weights, ready to be applied."""

    table: Table
    targets: list[tuple[Row, Entry]]
    """What each row is about: an entry for each of its names that is not tied to another."""
    pieces: list[Piece]
    taken: list[Taken]
    threads: int

    def commit(self) -> None:
        """Writes."""

        def scatter(ops: PatchOps, some: list[int]) -> list[None]:
            ops.scatter([self.pieces[i] for i in some], [self.taken[i] for i in some])
            return [None] * len(some)

        on_devices(self.pieces, self.threads, scatter)
        for _, entry in self.targets:
            entry.write_back()

    def sparse(self) -> list[SparseTensor]:
        """What changes, by tensor, ascending by name."""
        found, rest = list[SparseTensor](), iter(zip(self.pieces, self.taken, strict=True))
        for row, entry in self.targets:
            own = [next(rest) for _ in row.pieces()]
            if row.pattern.parts > 1:
                raise ValueError(f"weights[{row.names[0]!r}] is complex: servers know no such updates")
            wide = torch.int64 if prod(row.shape) >= 2**31 else torch.int32
            parts = [
                (torch.from_numpy((each.words >> 1).astype(np.int64)) + piece.first, each.bits)
                for piece, each in own
            ]
            if any(bits.numel() for _, bits in parts):
                indices = torch.cat([index for index, _ in parts]).to(entry.local.device, wide)
                values = torch.cat([bits for _, bits in parts]).view(entry.local.dtype)
                found += [SparseTensor(name, indices, values) for name in row.names]
        return sorted(found, key=lambda each: each.name)


def prepare(
    entries: Mapping[str, Entry], patch: Bytes, threads: int, digest: int | None = None
) -> Application:
    """Checks that a patch fits weights, and finds what they become; changes nothing.

    Args:
        entries: the weights.
        patch: uint8, untrusted.
        threads: how many may work at once.
        digest: of the weights, if it is known.

    Raises:
        CorruptMessage: the patch is damaged.
        PatchMismatch: it is not for these weights.
    """
    table = read_patch_table(patch)
    whole = {name: row for row in table.rows for name in row.names}
    require_same(whole, {name: entry.row for name, entry in entries.items()}, "the weights")
    named = [(row._replace(names=(name,)), entries[name]) for row in table.rows for name in row.names]
    for row, entry in named:
        if (
            row.elements
            and not entry.row.first
            <= row.first
            <= row.first + row.elements
            <= entry.row.first + entry.row.elements
        ):
            raise PatchMismatch(
                row.names[0], f"the weights have another shard of {row.names[0]!r} than the patch"
            )
    changes = read_changes(patch, table, threads)
    found = _digest(named, threads) if digest is None else digest
    if found != table.before:
        raise PatchMismatch("", f"the weights have digest {found:016x}, the patch is for {table.before:016x}")
    targets, pieces, steps, weighed = list[tuple[Row, Entry]](), list[Piece](), list[Steps](), list[int]()
    rest = iter(changes)
    for row in table.rows:
        own = [next(rest) for _ in row.pieces()]
        names = dict[Any, list[str]]()
        for name in row.names:
            names.setdefault(entries[name].place, []).append(name)
        for tied in names.values():
            targets.append((row._replace(names=tuple(tied)), entries[tied[0]]))
            for piece, change in zip(entries[tied[0]].pieces(row), own, strict=True):
                pieces.append(piece)
                steps.append(_nonzero(change if isinstance(change, Steps) else _to(piece, change)))
                weighed.append(sum(map(factor, tied)))
    taken = on_devices(
        pieces, threads, lambda ops, some: ops.take_steps([pieces[i] for i in some], [steps[i] for i in some])
    )
    after = found + sum(by * each.change for by, each in zip(weighed, taken, strict=True))
    if after % _WHOLE != table.after:
        raise CorruptMessage(f"the patch leads to digest {after % _WHOLE:016x}, and says {table.after:016x}")
    return Application(table, targets, pieces, taken, threads)


def _to(piece: Piece, data: Bytes) -> Steps:
    """The steps to a piece's bits after a patch."""
    tensor = torch.from_numpy(data.copy()).view(piece.tensor.dtype)
    steps = all_steps(piece, Piece(tensor, piece.first, piece.floats))
    return Steps(np.arange(steps.size, dtype=np.uint32) << np.uint32(1), steps)


def _nonzero(steps: Steps) -> Steps:
    moved = steps.steps != 0
    return steps if moved.all() else Steps(steps.words[moved], steps.steps[moved])


def threads_of(threads: int | None) -> int:
    """As many as torch uses, if nothing else is said."""
    return torch.get_num_threads() if threads is None else threads
