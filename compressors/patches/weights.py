"""State dictionaries as bit patterns, and their digests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parameter import is_lazy

from ..errors import PatchMismatch
from ..ops import ops_for
from ..ops.cuda.ops import CudaOps
from .format import PATTERNS, Row
from .kernels import PatchOps, Piece
from .kernels.cpu import CpuPatching
from .kernels.cuda import CudaPatching

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


def entries_of(weights: Weights, *, writable: bool = False) -> dict[str, Entry]:
    """Reads a state dictionary; names ascend. `writable`: its tensors will be written to.

    Raises:
        TypeError: a name is not a str, or a value is not a plain tensor of numbers, or a DTensor of one.
        ValueError: a tensor has no values, or lies on another device than a CPU or a GPU; a DTensor's shard
            is no run of its elements; or a tensor cannot be written to.
    """
    for name in weights:
        if not isinstance(name, str):
            raise TypeError(f"weights have the name {name!r}, a {type(name).__name__}; names are str")
    return {name: _entry(name, weights[name], writable) for name in sorted(weights)}


def rows_of(entries: Mapping[str, Entry]) -> dict[str, Row]:
    """The rows of all tensors, by name."""
    return {name: entry.row for name, entry in entries.items()}


def _entry(name: str, tensor: Any, writable: bool) -> Entry:
    local, first, published = tensor, 0, not dist.is_initialized() or dist.get_rank() == 0
    where, kind = f"weights[{name!r}]", type(tensor).__name__
    if is_lazy(tensor):
        raise ValueError(f"{where} is a {kind}, which has no values before the module's first forward pass")
    if isinstance(tensor, DTensor):
        local, first, published = _shard(name, cast(DTensor, tensor.detach()))
        kind = f"{kind} of {type(local).__name__}"
    # A subclass with a dispatch of its own has no memory that can be read, or none that is written back.
    if not isinstance(local, Tensor) or type(local).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise TypeError(f"{where} is a {kind}; patches take plain tensors, and DTensors of these")
    dtype = str(local.dtype).removeprefix("torch.")
    if dtype not in PATTERNS or local.layout is not torch.strided or local.is_nested:
        what = f"a {'nested' if local.is_nested else local.layout} tensor of {local.dtype}"
        raise TypeError(f"{where} is {what}; patches take strided tensors of {', '.join(PATTERNS)}")
    if local.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{where} lies on {local.device}; patches take tensors with values on cpu and cuda")
    if writable and (local.is_conj() or local.is_neg() or _overlaps(local)):
        view = "a lazily conjugated or negated view" if local.is_conj() or local.is_neg() else "expanded"
        raise ValueError(f"{where} is {view}: nothing can be written to it; use its clone()")
    local = local.detach().resolve_conj().resolve_neg()
    local = torch.view_as_real(local) if local.is_complex() else local
    width, _, parts = PATTERNS[dtype]
    row = Row((name,), dtype, tuple(tensor.shape), first * parts, local.numel())
    return Entry(row, local, local.contiguous().reshape(-1).view(BITS[width]), published)


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements may share memory, as those of `expand` and `unfold` do."""
    extent = 0  # in memory, of the dimensions with smaller strides
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= extent:
            return tensor.numel() > 0
        extent += (size - 1) * stride
    return False


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


def require_fit(rows: Iterable[Row], own: Mapping[str, Row]) -> None:
    """Refuses rows that are not those of weights, of which each tensor has one in `own`.

    Raises:
        PatchMismatch: names, dtypes or shapes differ; it names the first tensor of which they do. Or rows are
            of another shard, or not of all of it.
    """
    by_name = dict[str, list[Row]]()
    for row in rows:
        for name in row.names:
            by_name.setdefault(name, []).append(row)
    for name in sorted(by_name.keys() | own.keys()):
        if name not in own:
            raise PatchMismatch(name, f"the weights have no tensor {name!r}")
        if name not in by_name:
            raise PatchMismatch(name, f"the weights have a tensor {name!r} that should not be there")
        for row in by_name[name]:
            for what in ("dtype", "shape"):
                if (due := getattr(row, what)) != (given := getattr(own[name], what)):
                    raise PatchMismatch(name, f"the weights have {name!r} with {what} {given}, not {due}")
    for name, mine in own.items():
        ranges = sorted((row.first, row.first + row.size) for row in by_name[name] if row.size)
        begins, ends = [begin for begin, _ in ranges], [mine.first, *(end for _, end in ranges)]
        if [*begins, mine.first + mine.size] != ends:
            raise PatchMismatch("", f"the weights have another shard of {name!r}")


def batch_of(start: int) -> int:
    """The section, or the launch, of a row before which `start` bytes or patterns lie."""
    return start // (8 * _PIECE)


def by_device(method: str, threads: int, pieces: Sequence[Piece], *beside: Any, **options: Any) -> list[Any]:
    """The results of a method of `PatchOps` for pieces, which are on devices of any kind."""
    batches, results = dict[Any, list[int]](), list[Any](pieces)
    sizes = accumulate((piece.bits.numel() for piece in pieces), initial=0)
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=False)):
        batches.setdefault((piece.bits.device, batch_of(size)), []).append(number)
    for (device, _), numbers in batches.items():
        columns = [[column[number] for number in numbers] for column in (pieces, *beside)]
        made = getattr(patching_for(device, threads), method)(*columns, **options)
        for number, result in zip(numbers, made, strict=True):
            results[number] = result
    return results


def patching_for(device: torch.device, threads: int) -> PatchOps:
    """The passes on a device; raises ImportError if it is a GPU, and CuPy is not installed."""
    ops = ops_for(device, threads)
    return CudaPatching(ops) if isinstance(ops, CudaOps) else CpuPatching(threads)


def digest_of(entries: Mapping[str, Entry], threads: int) -> int:
    """The digest of weights: the sum of those of their tensors, each times its name's factor, modulo 2^64."""
    rows = [row for name, entry in entries.items() for row in entry.rows((name,))]
    digests: list[int] = by_device("digest", threads, [entries[row.names[0]].piece(row) for row in rows])
    return int(sum(map(mul, map(factor_of, rows), digests)) % 2**64)


def factor_of(row: Row) -> int:
    """What the digest of a row is multiplied by."""
    digests = (blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in row.names)
    return sum(int.from_bytes(digest, "little") | 1 for digest in digests)
