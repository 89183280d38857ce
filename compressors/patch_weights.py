"""State dictionaries as bit patterns, and the patches between them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, groupby
from math import prod
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from .errors import CorruptMessage, PatchMismatch
from .ops.array import Bytes
from .ops.cpu.patching import CpuPatching
from .ops.cuda.ops import CudaOps
from .ops.cuda.patching import CudaPatching
from .ops.interface import ops_for
from .ops.patching import Comparison, PatchOps, Piece, Steps
from .wire.patch import PATTERNS, PatchSection, Row, read_sections, read_steps, write_section

Weights = Mapping[str, Tensor]
"""Such as a state_dict: by name, tensors of any dtype and shape, or DTensors."""

_PIECE = 2**27
"""Bit patterns of a row, at most. So many of 8 bytes begin a new section, and a new launch."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of bit patterns, by bytes."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A named tensor, or this process's shard of it."""

    row: Row
    local: Tensor
    """What this process has, real."""
    bits: Tensor
    """[row.size], contiguous: the same memory, or a copy if that is not contiguous."""
    published: bool = True
    """Whether this rank publishes it, of those that have the same elements."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Equal for tensors that are tied."""
        return self.local.data_ptr(), self.local.device, self.local.stride(), *self.row[1:]

    def rows(self, names: tuple[str, ...]) -> Iterator[Row]:
        """Rows that a patch can be about."""
        for low in range(0, max(self.row.size, 1), _PIECE):
            size = min(_PIECE, self.row.size - low)
            yield self.row._replace(names=names, first=self.row.first + low, size=size)

    def piece(self, row: Row) -> Piece:
        """The bit patterns of a row."""
        begin = row.first - self.row.first
        return Piece(self.bits[begin : begin + row.size], row.first, PATTERNS[row.dtype].floats)

    def with_bits(self, bits: Tensor) -> "Entry":
        """The same in other memory."""
        return replace(self, local=bits, bits=bits)

    def empty(self) -> "Entry":
        """The same tensor, of which nothing is here."""
        return replace(self, row=self.row._replace(first=0, size=0), bits=self.bits[:0])

    def write_back(self) -> None:
        """Copies the bits to the tensor, where they are not its memory."""
        if self.bits.numel() and self.bits.data_ptr() != self.local.data_ptr():
            self.local.copy_(self.bits.view(self.local.dtype).view(self.local.shape))


def entries_of(weights: Weights) -> dict[str, Entry]:
    """Reads a state dictionary; names ascend.

    Raises:
        TypeError: a value is no tensor of plain numbers.
        ValueError: a DTensor's shard is no run of its elements.
    """
    return {name: _entry(name, weights[name]) for name in sorted(weights)}


def _entry(name: str, tensor: Any) -> Entry:
    dtype = str(tensor.dtype).removeprefix("torch.") if isinstance(tensor, Tensor) else ""
    if dtype not in PATTERNS or tensor.layout is not torch.strided:
        what = f"a {tensor.layout} tensor of {tensor.dtype}" if dtype else f"a {type(tensor).__name__}"
        raise TypeError(f"weights[{name!r}] is {what}; patches take strided tensors of {', '.join(PATTERNS)}")
    local, first, published = tensor.detach(), 0, not dist.is_initialized() or dist.get_rank() == 0
    if isinstance(local, DTensor):
        local, first, published = _shard(name, local)
    local = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local.resolve_neg()
    width, _, parts = PATTERNS[dtype]
    row = Row((name,), dtype, tuple(tensor.shape), first * parts, local.numel())
    return Entry(row, local, local.contiguous().reshape(-1).view(BITS[width]), published)


def _shard(name: str, tensor: DTensor) -> tuple[Tensor, int, bool]:
    """This process's shard, the index of its first element, and whether this process publishes it."""
    local, mesh, rows, first = tensor.to_local(), tensor.device_mesh, tensor.shape[0] if tensor.ndim else 1, 0
    published, coordinates = True, mesh.get_coordinate() or ()
    for dim, (placement, coordinate) in enumerate(zip(tensor.placements, coordinates, strict=True)):
        if type(placement) is Replicate:
            published = published and coordinate == 0
        elif type(placement) is Shard and placement.dim == 0:  # as torch.chunk divides
            chunk = -(-rows // mesh.size(dim))
            begin = min(chunk * coordinate, rows)
            first, rows = first + begin, min(chunk, rows - begin)
        else:
            what = f"weights[{name!r}] is placed as {placement}"
            raise ValueError(f"{what}; patches take Replicate and Shard(0)")
    return local, first * prod(tensor.shape[1:]) if local.numel() else 0, published


def require_fit(rows: Sequence[Row], entries: Mapping[str, Entry]) -> None:
    """Refuses rows that are not those of weights.

    Raises:
        PatchMismatch: names, dtypes or shapes differ; it names the first tensor of which they do. Or rows are
            of another shard, or not of all of it.
    """
    by_name = dict[str, list[Row]]()
    for row in rows:
        for name in row.names:
            by_name.setdefault(name, []).append(row)
    for name in sorted(by_name.keys() | entries.keys()):
        if name not in entries:
            raise PatchMismatch(name, f"the weights have no tensor {name!r}")
        if name not in by_name:
            raise PatchMismatch(name, f"the weights have a tensor {name!r} that should not be there")
        for row in by_name[name]:
            for what in ("dtype", "shape"):
                if (due := getattr(row, what)) != (given := getattr(entries[name].row, what)):
                    raise PatchMismatch(name, f"the weights have {name!r} with {what} {given}, not {due}")
    for name, entry in entries.items():
        ranges = sorted((row.first, row.first + row.size) for row in by_name[name] if row.size)
        begins, ends = [begin for begin, _ in ranges], [entry.row.first, *(end for _, end in ranges)]
        if [*begins, entry.row.first + entry.row.size] != ends:
            raise PatchMismatch("", f"the weights have another shard of {name!r}")


def _by_device(method: str, threads: int, pieces: Sequence[Piece], *beside: Any, **options: Any) -> list[Any]:
    """The results of a method of `PatchOps` for pieces, which are on devices of any kind."""
    batches, results = dict[Any, list[int]](), list[Any](pieces)
    sizes = accumulate((piece.bits.numel() for piece in pieces), initial=0)
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=False)):
        batches.setdefault((piece.bits.device, size // (8 * _PIECE)), []).append(number)
    for (device, _), numbers in batches.items():
        columns = [[column[number] for number in numbers] for column in (pieces, *beside)]
        made = getattr(patching_for(device, threads), method)(*columns, **options)
        for number, result in zip(numbers, made, strict=True):
            results[number] = result
    return results


def patching_for(device: torch.device, threads: int) -> PatchOps:
    """The passes on a device.

    Raises:
        ImportError: it is a GPU, and CuPy is not installed.
        ValueError: weights cannot be compared on it.
    """
    ops = ops_for(device, threads)
    return CudaPatching(ops) if isinstance(ops, CudaOps) else CpuPatching(threads)


def digest_of(entries: Mapping[str, Entry], threads: int) -> int:
    """The digest of weights: the sum of those of their tensors, each times its name's factor, modulo 2^64."""
    rows = [row for name, entry in entries.items() for row in entry.rows((name,))]
    digests: list[int] = _by_device("digest", threads, [entries[row.names[0]].piece(row) for row in rows])
    return int(sum(map(mul, map(_factor, rows), digests)) % 2**64)


def _factor(row: Row) -> int:
    """What the digest of a row is multiplied by."""
    digests = (blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in row.names)
    return sum(int.from_bytes(digest, "little") | 1 for digest in digests)


def make(
    before: Mapping[str, Entry], after: Mapping[str, Entry], digest: int | None, threads: int
) -> list[bytes]:
    """The sections of a patch; `digest` is that of `before`, if it is known.

    Raises:
        PatchMismatch: they are not of one model, or other shards of it.
    """
    require_fit([entry.row for entry in before.values()], after)
    rows, data = list(_rows(before, after)), list[bytes]()
    old, new = ([entries[row.names[0]].piece(row) for row in rows] for entries in (before, after))
    new = [replace(b, bits=b.bits.to(a.bits.device)) for a, b in zip(old, new, strict=True)]
    compared: list[Comparison] = _by_device("compare", threads, old, new, digested=digest is None)
    starts = accumulate((row.size * PATTERNS[row.dtype].width for row in rows), initial=0)
    for _, group in groupby(zip(starts, rows, compared, strict=False), lambda row: row[0] // (8 * _PIECE)):
        _, some, changes = zip(*group, strict=True)
        steps, factors = [change.steps for change in changes], list(map(_factor, some))
        begin = sum(map(mul, factors, (change.digest for change in changes)))
        if digest is not None and not data:
            begin = digest  # of all weights
        end = begin + sum(map(mul, factors, (change.change for change in changes)))
        changed = sum(some_steps.positions.size for some_steps in steps)
        head = PatchSection(some, changed, (begin % 2**64, end % 2**64))
        data.append(write_section(head, steps, threads))
    return data or [write_section(PatchSection((), 0, (0, 0)), [], threads)]


def _rows(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> Iterator[Row]:
    """What a patch is about; tensors that are tied, and were equal before, share rows."""
    tied = dict[Any, list[str]]()
    for name, entry in after.items():
        names = tied.setdefault(entry.place if entry.row.size else name, [])
        if names and not torch.equal(before[names[0]].bits, before[name].bits):
            names = tied.setdefault(name, [])
        names.append(name)
    for names in tied.values():
        yield from after[names[0]].rows(tuple(names))


class SparseTensor(NamedTuple):
    """The elements of a tensor that a patch changes."""

    name: str
    indices: Tensor
    """int32 [k] (int64 from 2^31 elements on), ascending, into the flattened tensor."""
    values: Tensor
    """[k], what they become, of the tensor's dtype."""


class CheckedPatch(NamedTuple):
    """A patch that fits weights, ready to be applied."""

    entries: Mapping[str, Entry]
    digest: int
    rows: list[Row]
    """One for each name of each row."""
    pieces: list[Piece]
    steps: list[Steps]
    bits: list[Tensor]
    """What patterns of each piece become."""
    threads: int

    def apply(self) -> None:
        """Writes to the weights."""
        _by_device("scatter", self.threads, self.pieces, self.steps, self.bits)
        for entry in self.entries.values():
            entry.write_back()

    def sparse(self) -> list[SparseTensor]:
        """What changes, by tensor; names ascend."""
        by_name = dict[str, list[tuple[int, Steps, Tensor]]]()
        for row, steps, bits in zip(self.rows, self.steps, self.bits, strict=True):
            if PATTERNS[row.dtype].parts > 1:
                raise ValueError(f"weights[{row.names[0]!r}] is complex: servers know no such updates")
            if bits.numel():
                by_name.setdefault(row.names[0], []).append((row.first, steps, bits))
        tensors = list[SparseTensor]()
        for name, parts in sorted(by_name.items()):
            parts.sort(key=lambda part: part[0])
            local, shape = self.entries[name].local, self.entries[name].row.shape
            indices = np.concatenate([steps.positions.astype(np.int64) + first for first, steps, _ in parts])
            wide = torch.int64 if prod(shape) >= 2**31 else torch.int32
            values = torch.cat([bits for *_, bits in parts]).view(local.dtype)
            tensors.append(SparseTensor(name, torch.from_numpy(indices).to(local.device, wide), values))
        return tensors


def prepare(entries: Mapping[str, Entry], patch: Bytes, threads: int) -> CheckedPatch:
    """Checks that a patch, uint8, untrusted, fits weights, and computes what they become; changes nothing.

    Raises:
        CorruptMessage: the patch is damaged.
        PatchMismatch: it is not for these weights.
    """
    sections = read_sections(patch)
    require_fit([row for section in sections for row in section.rows], entries)
    rows, steps = list[Row](), list[Steps]()
    for section in sections:
        for row, change in zip(section.rows, read_steps(section, threads), strict=True):
            rows += [row._replace(names=(name,)) for name in row.names]
            steps += [change] * len(row.names)
    pieces, factors = [entries[row.names[0]].piece(row) for row in rows], list(map(_factor, rows))
    before, after = (sum(section.digests[i] for section in sections) % 2**64 for i in (0, 1))
    digest = sum(map(mul, factors, _by_device("digest", threads, pieces))) % 2**64
    if digest != before:
        raise PatchMismatch("", f"the weights have digest {digest:016x}, the patch is for {before:016x}")
    stepped: list[tuple[Tensor, int]] = _by_device("take_steps", threads, pieces, steps)
    digest = (digest + sum(map(mul, factors, (change for _, change in stepped)))) % 2**64
    if digest != after:
        raise CorruptMessage(f"the patch leads to digest {digest:016x}, and says {after:016x}")
    return CheckedPatch(entries, digest, rows, pieces, steps, [bits for bits, _ in stepped], threads)
