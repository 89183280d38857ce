"""Methods that send every element and consist of torch's operations: the same lines for every device.

Parameters lie in rows of equal length, with zeros behind the last element of each. IEEE 754 leaves no choice
for an element, and sums are of integers, which come to the same in any order. So the bits depend neither on
the device, nor on the number of threads, nor on the other parameters of a bucket. Nothing waits for a device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from ..lazy import np, torch
from ..ops.array import Tensor
from ..ops.interface import LARGEST_TAU, SMALLEST_TAU, Kept
from ..ops.uniform import bits_of, keys_of
from .base import Symbols
from .dense import DenseMethod
from .quantizers import Quantized, QuantizerInput

_ROW = 1024
"""Elements of a row of a parameter that is one block."""
_PIECE = 1 << 16
"""Elements that stay in a CPU's caches from one operation to the next."""


class Rows:
    """The parameters of a bucket in rows: r rows of l elements, b blocks, m parameters.

    Attributes:
        sums: float32 [r, l], residual + gradient; the residual where that is not finite.
        owners: int64 [r], the block of each row.
        counts: float64 [b], elements of each block.
        broken: int64 [m], how many rows have a sum that is not finite.
        largest: float32 [b], largest magnitudes; 0 in parameters that are broken.
    """

    def __init__(self, given: QuantizerInput, block: int, seed: int | None = None) -> None:
        """Lays out at least one parameter in blocks of so many elements; 0: a block for each.

        With a seed there are random numbers.
        """
        ops, sizes, pairs = given.ops, given.batch.sizes, given.batch.pairs()
        self._given, self._sizes = given, sizes
        self._length = length = block or min(_ROW, int(sizes.max()))
        of_each = -(-sizes // length)
        firsts, parameters = np.cumsum(of_each) - of_each, np.repeat(np.arange(len(sizes)), of_each)
        starts = (np.arange(len(parameters)) - firsts[parameters]) * length  # of rows in their parameters
        self._begins, owners, counts = firsts * length, parameters, sizes
        if block:
            owners, counts = np.arange(len(parameters)), np.minimum(block, sizes[parameters] - starts)
        placed = ops.place_all([parameters, owners, counts.astype(np.float64)])
        of_row, self.owners, self.counts = map(ops.tensor, placed)
        if seed is not None:
            keys = keys_of(seed, given.iteration, given.stream, [part.name for part in given.parts])
            counters = starts + np.array([part.start for part in given.parts])[parameters]
            columns = np.column_stack((keys[parameters], counters.astype(np.int32)))
            self._keys = ops.tensor(ops.place_all([columns.reshape(-1)])[0]).view(-1, 3, 1)
        residuals = [residual for residual, _ in pairs]
        kept = 0.0 if set(residuals) == {None} else self._laid_out(residuals)
        self.sums = self._laid_out([gradient for _, gradient in pairs]).add_(kept)
        low, high = self.sums.aminmax(dim=1)  # NaN where one is
        largest = torch.maximum(low.abs(), high.abs())
        self.broken = of_row.new_zeros(len(sizes)).index_add_(0, of_row, (~largest.isfinite()).long())
        if not ops.on_host or self.broken.any():
            self.sums = torch.where(self.sums.isfinite(), self.sums, kept)
        largest.masked_fill_(self.broken[of_row] > 0, 0)
        self.largest = largest.new_zeros(len(counts)).scatter_reduce_(0, self.owners, largest, "amax")

    def _laid_out(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Tensors [n], one per parameter, in rows; zeros for None."""
        zeros = torch.zeros(self._length, dtype=torch.float32, device=self._given.ops.device)
        pieces, pads = [], -self._sizes % self._length
        for tensor, n, pad in zip(tensors, self._sizes.tolist(), pads.tolist(), strict=True):
            pieces += [zeros[:1].expand(n) if tensor is None else tensor.float(), zeros[:pad]]
        return torch.cat(pieces).view(-1, self._length)

    def pieces(self) -> Iterator[slice]:
        """Rows to work on at once."""
        step = max(1, _PIECE // self._length) if self._given.ops.on_host else len(self.owners)
        for begin in range(0, len(self.owners), step):
            yield slice(begin, begin + step)

    def means(self, power: int) -> Tensor:
        """Means of powers (1 or 2) of the magnitudes of each block, float64 [b]; 0 where `largest` is.

        Each power, in float64, becomes a whole number of a power of two, as in `Ops.exact_squares`.
        """
        bits = 62 - torch.frexp(self.counts).exponent - torch.frexp(self.largest.double() ** power).exponent
        scales = ((bits.long() + 1023) << 52).view(torch.float64)  # 2^bits
        totals = self.owners.new_zeros(len(bits))
        for at in self.pieces():
            powers = self.sums[at].abs().double() ** power * scales[self.owners[at], None]
            totals.index_add_(0, self.owners[at], powers.long().sum(1))
        return torch.where(self.largest > 0, totals / scales / self.counts, 0)

    def uniform(self, at: slice) -> Tensor:
        """Random numbers from 0 to below 1 for elements of some rows, float32, multiples of 2^-24."""
        low, high, starts = self._keys[at].unbind(1)
        columns = torch.arange(self._length, dtype=torch.int32, device=starts.device)
        drawn: Tensor = (bits_of(starts + columns, low, high) >> 8) & 0xFFFFFF
        return drawn.float() * 2.0**-24

    def of_parameters(self, values: Tensor) -> list[Tensor]:
        """The elements of each parameter, [n], from values of all rows, [r, l]; views."""
        flat, places = values.view(-1), zip(self._begins.tolist(), self._sizes.tolist(), strict=True)
        return [flat[begin : begin + n] for begin, n in places]


def bin_width(scale: Tensor, bits: int) -> Tensor:
    """A width of bins of form `linear`, float32: not below `scale`, and 0 where that is below 2^-126.

    Its last bits are 0, so that (symbol + 0.5) width is exact for symbols of so many bits. It is bounded, as
    readers refuse bins that reach further than float32.
    """
    spare = (1 << (bits + 1)) - 1
    width = scale.clamp(max=LARGEST_TAU).float()
    rounded = ((width.view(torch.int32) + spare) & ~spare).view(torch.float32)
    return rounded.masked_fill_(width < SMALLEST_TAU, 0)


class RowMethod(DenseMethod):
    """Every element as a symbol that follows from its sum and the scale of its block."""

    bits_are_fixed = True

    block: Annotated[int, Field(ge=0, le=2**16)] = 0
    """Number of elements that share a scale; 0: the whole layer is one block."""

    @abstractmethod
    def tables(self, rows: Rows) -> Sequence[Tensor]:
        """Tables of all blocks, in the order of a message; they stand for zeros where `largest` is 0."""

    @abstractmethod
    def encode(self, rows: Rows, at: slice, *tables: Tensor) -> tuple[Tensor, Tensor]:
        """The symbols of some rows, uint8, and the values that these stand for, float32.

        Tables are those of each row, [r, 1].
        """

    def apply(self, given: QuantizerInput) -> Quantized:
        ops, batch = given.ops, given.batch
        if not len(batch):
            return Quantized([], ops.empty(0, np.uint8), lambda: Kept(np.empty(0), np.empty(0, np.bool_)))
        rows = Rows(given, self.block, getattr(self, "seed", None))
        tables, symbols = self.tables(rows), torch.empty_like(rows.sums, dtype=torch.uint8)
        for at in rows.pieces():
            of_rows = [table[rows.owners[at], None] for table in tables]
            symbols[at], values = self.encode(rows, at, *of_rows)
            rows.sums[at] -= values
        errors = zip(batch.pairs(), rows.of_parameters(rows.sums), strict=True)
        kept = [(residual, error) for (residual, _), error in errors if residual is not None]
        if kept:
            torch._foreach_copy_([residual for residual, _ in kept], [error for _, error in kept])
        squares = ops.squares([residual for residual, _ in batch.pairs()], given.readback)
        nonfinite = given.readback.take(len(batch), np.int64)
        ops.tensor(nonfinite.array).copy_(rows.broken)
        return Quantized(
            [int(self.value_bits)] * len(batch),
            ops.array(torch.cat(rows.of_parameters(symbols))),
            lambda: Kept(squares(), nonfinite.values > 0),
            self.block,
            tuple(map(ops.array, tables)),
        )


class Stochastic(RowMethod):
    """Rounds at random, so that the mean of what is sent is what was given; without a residual, as in papers.

    Random numbers follow from the seed, the iteration, the worker, the parameter's name, and the element's
    position in it (`ops.uniform`).
    """

    decay: float = Field(default=0.0, ge=0, le=1)
    """Factor of the rounding error from one iteration to the next (error feedback): 1 keeps it, 0 drops
    it."""
    symbols: Symbols = "auto"
    """Encoding of the levels."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the random numbers."""
