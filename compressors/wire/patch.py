"""A weight patch as bytes (docs/reference/messages.md): a table of tensors, then messages about pieces."""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..method.base import Form
from ..ops.array import Bytes
from ..ops.cpu import huffman, patching
from ..ops.cpu.patching import UNITS
from ..ops.patching import Steps, Words
from ..ops.segments import Segments
from .message import HEADER_BYTES, LARGEST_N, length_of, read, read_table, write_all, write_table
from .update import Update

PIECE = 2**27
"""Elements of a piece, at most."""
_LARGEST_TABLE = 2**26
UNCHANGED, SPARSE, CODED, RAW = "0123"
"""How a piece is written."""


class BitPattern(NamedTuple):
    """The bit patterns of a type."""

    width: int
    """Bytes of one."""
    floats: bool
    """Whether a float's: sign and magnitude."""
    parts: int = 1
    """How many make an element: a complex number has two."""


PATTERNS = {
    **{
        name: BitPattern(1, True)
        for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    },
    **{name: BitPattern(2, True) for name in ("float16", "bfloat16")},
    **{f"float{8 * width}": BitPattern(width, True) for width in (4, 8)},
    **{f"complex{16 * width}": BitPattern(width, True, 2) for width in (2, 4, 8)},
    **{f"{kind}{8 * width}": BitPattern(width, False) for kind in ("int", "uint") for width in (1, 2, 4, 8)},
    **{name: BitPattern(1, False) for name in ("bool", "float8_e8m0fnu")},
}
"""By name of torch's types."""


class Row(NamedTuple):
    """A tensor, or a shard of one that is a run of its elements."""

    names: tuple[str, ...]
    """Its names; several, where tensors are tied."""
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    first: int
    """The number of the first element that is here."""
    elements: int
    """How many are here."""

    @property
    def pattern(self) -> BitPattern:
        """Its bit patterns."""
        return PATTERNS[self.dtype]

    def pieces(self) -> Iterator[tuple[int, int]]:
        """First bit pattern, from the first one here, and how many, of each of its pieces."""
        total = self.elements * self.pattern.parts
        return ((low, min(PIECE, total - low)) for low in range(0, total, PIECE))


@dataclass(frozen=True)
class Table:
    """What a patch says of itself."""

    rows: tuple[Row, ...]
    changed: int
    """How many bit patterns change; a tied tensor's count once."""
    before: int
    """Digest of the weights that it is for."""
    after: int
    """Digest of what they become."""
    modes: str = ""
    """A digit for each piece."""
    cuts: tuple[int, ...] = ()
    """How many pieces each part has, which messages are about together: at most LARGEST_N bytes."""

    @property
    def count(self) -> int:
        """Bit patterns of all rows."""
        return sum(row.elements * row.pattern.parts for row in self.rows)

    def parts(self) -> list[list[tuple[str, BitPattern, int]]]:
        """Mode, pattern and length of the pieces of each part."""
        lengths = [(row.pattern, length) for row in self.rows for _, length in row.pieces()]
        pieces = [(mode, *each) for mode, each in zip(self.modes, lengths, strict=True)]
        ends = list(accumulate(self.cuts))
        if [0, *ends][-1] != len(pieces) or min(self.cuts, default=1) < 1:
            raise ValueError("the parts of a patch are not its pieces")
        return [pieces[end - count : end] for end, count in zip(ends, self.cuts, strict=True)]


class Change(NamedTuple):
    """What becomes of a piece."""

    words: Words | None
    """uint32 [k], position << 1; None: of all its elements."""
    steps: NDArray[Any]
    """Beside each."""
    bits: Callable[[], Bytes]
    """What it becomes, as bytes."""


def write_patch(table: Table, changes: Sequence[Change], threads: int) -> bytes:
    """A patch.

    Args:
        table: of what it is about; its modes do not count.
        changes: of all pieces.
        threads: how many may work at once; the bytes do not depend on it.
    """
    widths = [row.pattern.width for row in table.rows for _ in row.pieces()]
    modes, cuts = "".join(map(_mode, changes, widths)), _cuts(table.rows)
    payloads, at = list[Bytes](), 0
    for part in replace(table, modes=modes, cuts=cuts).parts():
        own = changes[at : at + len(part)]
        raw = sum(length * pattern.width for mode, pattern, length in part if mode != UNCHANGED)
        payload = _write_part([mode for mode, _, _ in part], part, own, threads)
        if payload.size > raw + HEADER_BYTES:
            found = "".join(UNCHANGED if mode == UNCHANGED else RAW for mode, _, _ in part)
            payload = _write_part(found, part, own, threads)
            modes = modes[:at] + found + modes[at + len(part) :]
        payloads.append(payload)
        at += len(part)
    return _joined(replace(table, modes=modes, cuts=cuts), payloads)


def _cuts(rows: Sequence[Row]) -> tuple[int, ...]:
    cuts, size = [0], 0
    for row in rows:
        for _, length in row.pieces():
            own = length * row.pattern.width
            if size + own > LARGEST_N:
                cuts.append(0)
                size = 0
            cuts[-1] += 1
            size += own
    return tuple(each for each in cuts if each)


def _joined(table: Table, messages: Sequence[Bytes]) -> bytes:
    text = json.dumps(
        {
            "changed": table.changed,
            "digests": [f"{each:016x}" for each in (table.before, table.after)],
            "modes": table.modes,
            "parts": table.cuts,
            "tensors": [row if row.elements != prod(row.shape) else row[:3] for row in table.rows],
        },
        separators=(",", ":"),
    )
    return np.concatenate([write_table(len(table.rows), zlib.compress(text.encode())), *messages]).tobytes()


def _mode(change: Change, width: int) -> str:
    if change.words is not None:
        return SPARSE if change.words.size else UNCHANGED
    symbols, low = patching.split(change.steps, 0)
    (estimate,) = huffman.Codes.of(symbols, np.array([symbols.size]), np.array([8])).estimates
    return CODED if min(estimate, symbols.size) + low.size < change.steps.size * width else RAW


def _write_part(
    modes: Sequence[str], part: Sequence[tuple[str, BitPattern, int]], changes: Sequence[Change], threads: int
) -> Bytes:
    def of(mode: str) -> list[Change]:
        return [change for given, change in zip(modes, changes, strict=True) if given == mode]

    lengths = [length for _, _, length in part]
    updates = list[Update]()
    if sparse := of(SPARSE):
        segments = _segments(lengths, modes, SPARSE)
        words = np.concatenate(
            [
                change.words + (first << np.uint32(1))
                for change, first in zip(sparse, segments.firsts.astype(np.uint32), strict=True)
                if change.words is not None
            ]
        )
        steps = np.concatenate([change.steps for change in sparse])
        units, others, steps = patching.divide(words, steps)
        counts, taus = segments.counts_of(units), np.ones(len(segments), np.float32)
        updates.append(Update("strom", segments, units, counts, taus=taus))
        updates.append(_steps(segments, others, steps))
    if coded := of(CODED):
        segments = _segments(lengths, modes, CODED)
        updates.append(_steps(segments, None, np.concatenate([change.steps for change in coded])))
    if raw := of(RAW):
        segments = _segments([length * pattern.width for _, pattern, length in part], modes, RAW)
        bits = np.concatenate([change.bits() for change in raw])
        updates.append(Update("bits", segments, None, segments.sizes, bits))
    return write_all([(update, "auto") for update in updates], "auto", threads)


def _steps(segments: Segments, words: Words | None, steps: NDArray[Any]) -> Update:
    counts = segments.sizes if words is None else segments.counts_of(words)
    symbols, low = patching.split(steps, 0 if words is None else UNITS)
    return Update("steps", segments, words, counts, symbols, tables=(low,))


def _segments(lengths: Sequence[int], modes: Sequence[str], mode: str) -> Segments:
    """The pieces that are written in one way, side by side."""
    sizes = np.array([length for length, own in zip(lengths, modes, strict=True) if own == mode], np.int64)
    return Segments(tuple(range(sizes.size)), np.cumsum(sizes) - sizes, sizes)


# Reading


def read_patch_table(patch: Bytes) -> Table:
    """What a patch, uint8, untrusted, says of itself.

    Raises:
        CorruptMessage: it does not begin with a table.
    """
    count, body = read_table(patch[: length_of(patch)])
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(body, _LARGEST_TABLE)
        table = _table(json.loads(text)) if inflate.eof and not inflate.unused_data else None
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError) as problem:
        raise CorruptMessage(f"the table of a patch cannot be read: {problem}") from None
    if table is None or len(table.rows) != count:
        raise CorruptMessage(f"the table of a patch is cut off, too long, or not of {count} tensors")
    return table


def _table(given: Any) -> Table:
    before, after = (int.from_bytes(bytes.fromhex(each)) for each in given["digests"])
    rows, modes, cuts = (
        tuple(row_of(*each) for each in given["tensors"]),
        given["modes"],
        tuple(given["parts"]),
    )
    if not (max(before, after) < 2**64 and type(modes) is str and set(modes) <= set("0123")):
        raise ValueError("a digest or a mode is none that is written")
    if not all(type(each) is int for each in (given["changed"], *cuts)):
        raise ValueError("a number is none")
    table, seen = Table(rows, given["changed"], before, after, modes, cuts), dict[str, Row]()
    for part in table.parts():
        if sum(length * pattern.width for _, pattern, length in part) > LARGEST_N:
            raise ValueError("a part is too large")
    for row in sorted(rows, key=lambda row: row.first):
        for name in row.names:
            last = seen.get(name)
            if last and (last[1:3] != row[1:3] or row.first < last.first + last.elements or not row.elements):
                raise ValueError(f"tensor {name} is there twice")
            seen[name] = row
    return table


def row_of(names: Any, dtype: Any, shape: Any, first: Any = 0, count: Any = None) -> Row:
    """A row as a file has it, untrusted.

    Raises:
        ValueError: it is impossible, or of an unknown type.
    """
    total = prod(shape)
    row = Row(tuple(names), dtype, tuple(shape), first, total if count is None else count)
    numbers = [*row.shape, row.first, row.elements]
    valid = all(type(each) is int and 0 <= each < 2**62 for each in numbers) and total < 2**62
    if not (
        valid and row.first + row.elements <= total and all(type(name) is str for name in names) and names
    ):
        raise ValueError(f"tensor {names} has an impossible shape or shard")
    if dtype not in PATTERNS:
        raise ValueError(f"tensor {names[0]} has dtype {dtype}; known are {', '.join(PATTERNS)}")
    return row


def read_changes(patch: Bytes, table: Table, threads: int) -> list[Steps | Bytes]:
    """What a patch makes of each piece: steps of some elements, or all its bytes.

    Args:
        patch: uint8, untrusted.
        table: the patch's, whose tensors are known to exist: nothing larger than them is allocated.
        threads: how many may work at once.

    Raises:
        CorruptMessage: it is nothing that `write_patch` makes.
    """
    rest = patch[length_of(patch) :]
    found = list[Steps | Bytes]()

    def take(form: Form, segments: Segments) -> Update:
        nonlocal rest
        message, rest = rest[: length_of(rest)], rest[length_of(rest) :]
        return read(message, segments, threads, (form,))

    for part in table.parts():
        found += _read_part(part, take)
    if rest.size:
        raise CorruptMessage(f"length: {rest.size} bytes follow the patch")
    return found


def _read_part(
    part: Sequence[tuple[str, BitPattern, int]], take: Callable[[Form, Segments], Update]
) -> list[Steps | Bytes]:
    modes, lengths = [mode for mode, _, _ in part], [length for _, _, length in part]
    by_mode = {mode: list[Steps | Bytes]() for mode in "0123"}
    by_mode[UNCHANGED] = [Steps(np.empty(0, np.uint32), np.empty(0, np.uint32))] * modes.count(UNCHANGED)
    if SPARSE in modes:
        segments = _segments(lengths, modes, SPARSE)
        units, others = take("strom", segments), take("steps", segments)
        if units.words is None or others.words is None or np.any(units.taus != np.float32(1)):
            raise CorruptMessage("a patch without positions, or whose unit is not 1")
        words, steps = patching.merge(units.words, others.words, _values(others, UNITS))
        for first, count, end in zip(
            segments.firsts.tolist(),
            segments.counts_of(words).tolist(),
            segments.counts_of(words).cumsum(),
            strict=True,
        ):
            own = slice(end - count, end)
            by_mode[SPARSE].append(Steps(words[own] - np.uint32(first << 1), steps[own]))
    if CODED in modes:
        update = take("steps", _segments(lengths, modes, CODED))
        if update.words is not None or update.k != update.n:
            raise CorruptMessage("a piece that changes as a whole has positions")
        values = _values(update, 0)
        for own in update.offsets.symbols:
            every = np.arange(own.stop - own.start, dtype=np.uint32) << np.uint32(1)
            by_mode[CODED].append(Steps(every, values[own]))
    if RAW in modes:
        update = take("bits", _segments([length * pattern.width for _, pattern, length in part], modes, RAW))
        if update.k != update.n:
            raise CorruptMessage("a piece that is sent whole is not")
        by_mode[RAW] = [update.values[own] for own in update.offsets.symbols]
    found = [by_mode[mode].pop(0) for mode in modes]
    for change, (_, pattern, _) in zip(found, part, strict=True):
        if isinstance(change, Steps) and int(change.steps.max(initial=0)) >> 8 * pattern.width:
            raise CorruptMessage(f"a step has more than {8 * pattern.width} bits")
    return found


def _values(update: Update, more: int) -> NDArray[np.uint64]:
    if not update.k:
        return np.empty(0, np.uint64)
    return patching.join(update.values, update.tables[0], more)


def merge_patches(patches: Sequence[Bytes]) -> bytes:
    """One patch of the patches of shards, of which none has elements of another.

    Raises:
        CorruptMessage: one has no valid table.
    """
    tables = [read_patch_table(patch) for patch in patches]
    merged = Table(
        tuple(row for table in tables for row in table.rows if row.elements or table is tables[0]),
        sum(table.changed for table in tables),
        sum(table.before for table in tables) % 2**64,
        sum(table.after for table in tables) % 2**64,
        "".join(table.modes for table in tables),
        tuple(cut for table in tables for cut in table.cuts),
    )
    return _joined(merged, [patch[length_of(patch) :] for patch in patches])
