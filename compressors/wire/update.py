"""What a worker sends for one bucket, before it is encoded: columns over all of its parameters.

Legend: n elements, k of them sent, m parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..lazy import np
from ..ops.array import Array, Floats32, Numbers, Words, host
from ..ops.interface import Form, Offsets, Ops, check_chunks


@dataclass(frozen=True, eq=False)
class Segments:
    """The parameters that an update is about, one after the other without gaps; int64 [m], none empty.

    Positions in an update count from the first element of the first parameter. In the bucket other parameters
    may lie between these, which are sent otherwise.
    """

    ordinals: tuple[int, ...]
    """By parameter, its index among the bucket's parameters."""
    starts: Numbers
    """Its first element in the bucket."""
    sizes: Numbers

    def __len__(self) -> int:
        return len(self.ordinals)

    @cached_property
    def places(self) -> Numbers:
        """The ordinals, to index with: int64 [m]."""
        return np.array(self.ordinals, np.int64)

    @cached_property
    def ends(self) -> Numbers:
        """The position behind the last element of each."""
        return np.cumsum(self.sizes)

    @cached_property
    def firsts(self) -> Numbers:
        """The position of the first element of each."""
        return self.ends - self.sizes

    @cached_property
    def shifts(self) -> Numbers:
        """What has to be added to a position in each, to have the element of the bucket."""
        return self.starts - self.firsts

    @cached_property
    def n(self) -> int:
        """Elements of all."""
        return int(self.sizes.sum())

    def counts_of(self, words: Words) -> Numbers:
        """How many words, uint32 [k], position << 1 | sign, ascending, lie in each."""
        # A limit of another type would cost a copy of the words.
        ends = np.searchsorted(words, self.ends.astype(np.uint32) << np.uint32(1))
        return np.diff(ends, prepend=0)


@dataclass(frozen=True)
class Chunks:
    """From every `chunk` elements of a parameter (the last may be fewer) `keep` are sent, or all."""

    chunk: int
    """A power of two."""
    keep: int

    def __post_init__(self) -> None:
        check_chunks(self.chunk, self.keep)

    def count(self, n: Any) -> Any:
        """Elements sent of n (a number, or an array of them)."""
        count = n // self.chunk * self.keep + np.minimum(n % self.chunk, self.keep)
        return int(count) if isinstance(n, int) else count


@dataclass(slots=True)  # not frozen: replacing a field would take longer; nobody changes one
class Update:
    """k of n elements, each with a position, a sign and, depending on the form, a value.

    A single parameter is represented as columns of length 1.
    """

    form: Form
    segments: Segments
    words: Array | None
    """uint32 [k], position << 1 | sign, ascending; where values have the sign, the lowest bit means nothing.
    None where parameters are sent whole, or not at all."""
    counts: Numbers
    """int64 [m], elements sent of each parameter."""
    values: Array = field(default_factory=lambda: np.empty(0, np.uint8))
    """[k] float32 (f32), the bits of 16-bit floats, levels 1 to 255 (qgt, uint8), or symbols: uint8 where all
    have up to 8 bits, otherwise uint16. Nothing for bgt and strom."""
    taus: Floats32 | None = None
    """float32 [m], of forms that have one."""
    bits: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [m], of a symbol of each parameter of quantized forms; 0 where it has none."""
    block: int = 0
    """Values that share tables, the last ones of a parameter may be fewer; 0: a block for each parameter."""
    tables: Sequence[Array] = ()
    """Ranges or tables of all blocks (`forms.table_layout`)."""
    chunks: Chunks | None = None
    """What positions are regular in, in parameters of which anything is sent."""
    keys: Words | None = None
    """[m], by which positions were drawn at random (`ops.uniform.positions_of`), if they were."""

    @property
    def n(self) -> int:
        """Elements of all parameters."""
        return self.segments.n

    @property
    def k(self) -> int:
        """Elements sent."""
        return int(self.counts.sum())

    @property
    def offsets(self) -> Offsets:
        """Where values and tables of each parameter stand."""
        return Offsets.of(self.counts, self.block)

    def arrays(self) -> list[Array]:
        """All that may lie on a device."""
        return [*(() if self.words is None else (self.words,)), self.values, *self.tables]

    def with_arrays(self, others: list[Any]) -> Update:
        """The same with other arrays, in the order of `arrays`; takes them from the front of a list."""
        words = None if self.words is None else others.pop(0)
        values, tables = others.pop(0), tuple(others.pop(0) for _ in self.tables)
        return replace(self, words=words, values=values, tables=tables)

    def signed_floats(self, ops: Ops) -> Any:
        """float32 [k], what is sent for each element, of forms whose values have the sign."""
        if self.form == "f32" and self.k:
            return self.values
        offsets, out = self.offsets, ops.zeros(self.k, np.float32)
        if self.k:
            source = self.values, self.tables
            ops.add_values(self.form, [source], self.block, offsets.table, out, offsets.begins, 0)
        return out

    def amounts(self, ops: Ops) -> Floats32:
        """float32 [k], the signed amount that is sent for each element, of an update in the CPU's memory."""
        if self.taus is None:
            floats: Floats32 = self.signed_floats(ops)
            return floats
        amounts = np.repeat(self.taus, self.counts)
        if self.form == "qgt":
            amounts *= host(self.values)
        return np.where(host(self.words) & 1, -amounts, amounts)

    def places(self) -> list[tuple[slice | Numbers, slice]]:
        """Elements of the bucket that are sent, and which of the amounts are theirs; in the CPU's memory."""
        if self.words is not None:
            elements = (host(self.words) >> 1).astype(np.int64) + np.repeat(self.segments.shifts, self.counts)
            return [(elements, slice(None))]
        ends = (self.segments.starts + self.counts).tolist()
        places = map(slice, self.segments.starts.tolist(), ends)
        return list(zip(places, self.offsets.symbols, strict=True))
