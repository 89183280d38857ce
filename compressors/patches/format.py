"""A weight patch as bytes: sections, of a table and up to four messages (docs/reference/messages.md)."""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..ops.array import Bytes, Words, aligned, host
from ..ops.cpu.huffman import Codes
from ..ops.interface import Form
from ..wire.forms import FORMS
from ..wire.message import HEADER_BYTES, LARGEST_N, length_of, read, write_all
from ..wire.update import Segments, Update
from ..wire.values import STEP_BITS
from .kernels import Steps

VERSION = 2
"""Version of the tables of patches, and of what snapshots say about themselves."""
_LARGEST_TABLE = 2**26
_FORM_AT = 3
_UNITS = 3
"""Steps below are none, and one unit down or up."""
SPARSE, CODED, RAW = range(3)
_NOTHING: Bytes = np.empty(0, np.uint8)


class BitPattern(NamedTuple):
    """The bit patterns of a dtype."""

    width: int
    floats: bool
    parts: int = 1
    """Patterns of an element: a complex number has two."""


_KINDS, _FLOAT8 = ("int", "uint", "float"), ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
PATTERNS = {
    **{f"{kind}{8 * n}": BitPattern(n, kind == "float") for kind in _KINDS for n in (1, 2, 4, 8)},
    **{f"complex{16 * n}": BitPattern(n, True, 2) for n in (2, 4, 8)},
    **{f"float8_{kind}": BitPattern(1, kind != "e8m0fnu") for kind in _FLOAT8},
    **{"bfloat16": BitPattern(2, True), "bool": BitPattern(1, False)},
}
"""By name of a torch dtype."""


class Row(NamedTuple):
    """A run of a tensor's bit patterns."""

    names: tuple[str, ...]
    """Of the tensor; several, if tensors are tied."""
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    first: int
    """Index of the first pattern."""
    size: int
    mode: int = SPARSE
    """How steps are written: of what changes, of all patterns as symbols, or of all as they are."""


@dataclass(frozen=True)
class PatchSection:
    """Rows, and the messages about them."""

    rows: tuple[Row, ...]
    changed: int
    """Patterns that change; those of tied tensors count once."""
    digests: tuple[int, int]
    """Of the weights before and after; they add up over sections."""
    stream: int = 0
    """The identity of the stream that it belongs to; 0 if there is none."""
    messages: list[Bytes] = field(default_factory=list)


def _segments(sizes: Iterable[int]) -> Segments:
    """Runs side by side; empty ones are left out."""
    array = np.array([size for size in sizes if size], np.int64)
    return Segments(tuple(range(array.size)), np.cumsum(array) - array, array)


def _of_mode(rows: Iterable[Row], mode: int) -> Segments:
    return _segments(row.size for row in rows if row.mode == mode)


def _bytes(form: Form, data: Bytes) -> Update:
    segments = _segments([data.size])
    return Update(form, segments, None, segments.sizes, data)


def _split(values: NDArray[np.uint64]) -> tuple[NDArray[Any], Bytes]:
    """Symbols, which say how many low bytes they leave out and what is above these; and the low bytes."""
    left = np.zeros(values.size, np.uint8)
    for bits in range(8, int(values.max(initial=0)).bit_length(), 8):
        left += values >= 1 << bits
    symbols = left.astype(np.uint16) << 8 | (values >> 8 * left).astype(np.uint16)
    return symbols, values.view(np.uint8).reshape(-1, 8)[np.arange(8) < left[:, None]]


def _join(symbols: NDArray[Any], low: Bytes) -> NDArray[np.uint64]:
    left, values = symbols >> 8, np.zeros((symbols.size, 8), np.uint8)
    values[np.arange(8) < left[:, None]] = low
    return values.view(np.uint64).ravel() | (symbols & 255).astype(np.uint64) << 8 * left.astype(np.uint64)


def write_section(section: PatchSection, steps: Sequence[Steps], threads: int) -> bytes:
    """Writes a section, which has no modes and messages yet; the steps of each row are at least 1."""
    rows, sparse, low, raw = list[Row](), list[Steps](), list[Bytes](), list[Bytes]()
    coded, updates = list[tuple[NDArray[Any], Bytes]](), list[Update]()
    for row, change in zip(section.rows, steps, strict=True):
        mode = SPARSE
        if 2 * change.positions.size <= row.size:
            sparse += [change] * (row.size > 0)
        else:
            dense = np.zeros(row.size, f"u{PATTERNS[row.dtype].width}")
            dense[change.positions] = change.steps
            symbols, rest = _split(dense.astype(np.uint64))
            (estimate,) = Codes.of(symbols, np.array([row.size]), np.array([STEP_BITS]), threads).estimates
            if estimate + rest.size < dense.nbytes:
                mode = CODED
                coded.append((symbols, rest))
            else:
                mode = RAW
                raw.append(dense.view(np.uint8))
        rows.append(row._replace(mode=mode))
    if sparse:
        segments = _of_mode(rows, SPARSE)
        firsts = segments.firsts.astype(np.uint32)
        pairs = zip(sparse, firsts, strict=True)
        words: Words = np.concatenate([change.positions + first << 1 for change, first in pairs])
        values = np.concatenate([change.steps.astype(np.uint64) for change in sparse])
        unit: NDArray[np.bool_] = values < _UNITS
        units, others = words[unit] | (values[unit] & 1).astype(np.uint32), words[~unit]
        ones = np.ones(len(segments), np.float32)
        updates.append(Update("strom", segments, units, segments.counts_of(units), taus=ones))
        symbols, rest = _split(values[~unit] - _UNITS)
        updates.append(Update("steps", segments, others, segments.counts_of(others), symbols))
        low.append(rest)
    if coded:
        segments = _of_mode(rows, CODED)
        symbols, rest = map(np.concatenate, zip(*coded, strict=True))
        updates.append(Update("steps", segments, None, segments.sizes, symbols))
        low.append(rest)
    if (data := np.concatenate([_NOTHING, *low, *raw])).size:
        updates.append(_bytes("bits", data))
    table = {"version": VERSION, "stream": f"{section.stream:016x}", "changed": section.changed}
    table |= {"digests": [f"{digest:016x}" for digest in section.digests], "rows": rows}
    text = zlib.compress(json.dumps(table, separators=(",", ":")).encode())
    updates.insert(0, _bytes("patch", np.frombuffer(text, np.uint8)))
    return write_all([(update, "auto") for update in updates], "auto", threads).tobytes()


# Reading


def row_of(names: Any, dtype: Any, shape: Any, first: Any, size: Any, mode: Any = SPARSE) -> Row:
    """A row as a file has it, untrusted.

    Raises:
        ValueError: it is impossible, or of an unknown dtype.
    """
    row = Row(tuple(names), dtype, tuple(shape), first, size, mode)
    if dtype not in PATTERNS:
        raise ValueError(f"tensor {names[0]} has dtype {dtype}; known are {', '.join(PATTERNS)}")
    if not (
        all(type(number) is int and number >= 0 for number in (*row.shape, first, size, mode))
        and first + size <= prod(row.shape) * PATTERNS[dtype].parts < 2**62
        and mode <= RAW
        and names
        and all(type(name) is str for name in names)
    ):
        raise ValueError(f"tensor {names} has an impossible shape, range or mode")
    return row


def read_sections(data: bytes) -> list[PatchSection]:
    """Reads the tables of a patch, untrusted.

    Raises:
        CorruptMessage: one is missing, or none that `write_section` writes.
    """
    sections, patch = list[PatchSection](), np.frombuffer(data, np.uint8)
    while patch.size or not sections:
        message, patch = patch[: length_of(patch)], patch[length_of(patch) :]
        if message[_FORM_AT] == FORMS["patch"].code:
            sections.append(_read_section(message))
        elif sections:
            sections[-1].messages.append(message)
        else:
            raise CorruptMessage("a patch begins with a table")
    if len({section.stream for section in sections}) > 1:
        raise CorruptMessage("its sections are of several streams")
    return sections


class Summary(NamedTuple):
    """What the tables of a patch, or a snapshot, say about all of it."""

    stream: int
    digest: int
    """Of the weights after it."""
    changed: float = 1.0
    """Share of the patterns that change."""


def summary(sections: Sequence[PatchSection]) -> Summary:
    """Sums up what the tables of a patch say."""
    size = sum(row.size for section in sections for row in section.rows)
    changed = sum(section.changed for section in sections) / max(size, 1)
    return Summary(sections[0].stream, sum(section.digests[1] for section in sections) % 2**64, changed)


def require_version(fields: Any) -> int:
    """Returns the stream of a table or a snapshot, whose version must be this program's; else ValueError."""
    if fields.get("version", 1) != VERSION:
        raise ValueError(f"it has version {fields.get('version', 1)}; this program reads version {VERSION}")
    if not 0 <= (stream := int(fields["stream"], 16)) < 2**64:
        raise ValueError("its stream has no identity that is written")
    return stream


def _read_section(message: Bytes) -> PatchSection:
    update = read(message, _segments([message.size - HEADER_BYTES]), forms=("patch",))
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(update.values.tobytes(), _LARGEST_TABLE)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("it is cut off, or too long")
        table = json.loads(text)
        stream = require_version(table)
        before, after = (int(digest, 16) for digest in table["digests"])
        rows = tuple(row_of(*row) for row in table["rows"])
        if update.k != update.n or sum(row.size * PATTERNS[row.dtype].width for row in rows) > LARGEST_N:
            raise ValueError("it is about too many bytes")
        if not (0 <= before < 2**64 and 0 <= after < 2**64 and type(table["changed"]) is int):
            raise ValueError("a digest or a count is none that is written")
    except (zlib.error, ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
        raise CorruptMessage(f"the table of a patch cannot be read: {problem}") from None
    return PatchSection(rows, table["changed"], (before, after), stream)


def read_steps(section: PatchSection, threads: int) -> list[Steps]:
    """Reads how each row changes; allocates nothing larger than the rows.

    Raises:
        CorruptMessage: the messages are none that `write_section` writes.
    """
    rows, messages = section.rows, list(section.messages)

    def take(form: Form, segments: Segments, *, sparse: bool) -> Update:
        update = read(messages.pop(0) if messages else _NOTHING, segments, threads, (form,))
        if (update.words is not None) != sparse or not (sparse or update.k == update.n):
            raise CorruptMessage(f"{form}: positions are missing, or not due")
        return update

    sparse, coded = _of_mode(rows, SPARSE), _of_mode(rows, CODED)
    units = take("strom", sparse, sparse=True) if len(sparse) else None
    updates = [take("steps", sparse, sparse=True)] if len(sparse) else []
    updates += [take("steps", coded, sparse=False)] if len(coded) else []
    raw = [row for row in rows if row.mode == RAW and row.size]
    sizes = [int((update.values >> 8).sum(dtype=np.int64)) for update in updates]  # of the low bytes
    sizes += [row.size * PATTERNS[row.dtype].width for row in raw]
    data = take("bits", _segments([sum(sizes)]), sparse=False).values if any(sizes) else _NOTHING
    if messages:
        raise CorruptMessage(f"{len(messages)} messages follow those of a section")
    parts = np.split(data, np.cumsum(sizes, dtype=np.int64))
    values = [_join(update.values, part) for update, part in zip(updates, parts, strict=False)]
    dense = np.split(values[-1], coded.ends[:-1]) if len(coded) else []
    of_mode: dict[int, Iterator[Steps]] = {CODED: map(_nonzero, dense)}
    of_mode[RAW] = (
        _nonzero(aligned(part, f"u{PATTERNS[row.dtype].width}"))
        for row, part in zip(raw, parts[len(updates) :], strict=False)
    )
    if units:
        of_mode[SPARSE] = _merged(units, updates[0], values[0])
    steps = [next(of_mode[row.mode]) if row.size else _nonzero(_NOTHING) for row in rows]
    for row, change in zip(rows, steps, strict=True):
        if int(change.steps.max(initial=0)) >> 8 * PATTERNS[row.dtype].width:
            raise CorruptMessage(f"a step of {row.names[0]} has too many bits for {row.dtype}")
    if (changed := sum(change.positions.size for change in steps)) != section.changed:
        raise CorruptMessage(f"{changed} patterns change where the table says {section.changed}")
    return steps


def _nonzero(dense: NDArray[Any]) -> Steps:
    positions = np.flatnonzero(dense)
    return Steps(positions.astype(np.uint32), dense[positions])


def _merged(units: Update, others: Update, values: NDArray[np.uint64]) -> Iterator[Steps]:
    if np.any(units.taus != np.float32(1)):
        raise CorruptMessage("the unit of a patch is not 1")
    first, second = (host(update.words) >> 1 for update in (units, others))
    at = np.searchsorted(first, second)
    positions = np.insert(first, at, second)
    if np.any(positions[1:] == positions[:-1]):
        raise CorruptMessage("a pattern changes by one unit and by another step")
    steps = np.insert(2 - (host(units.words) & 1).astype(np.uint64), at, values + _UNITS)
    ends, firsts = np.cumsum(units.counts + others.counts)[:-1], units.segments.firsts.astype(np.uint32)
    parts = zip(np.split(positions, ends), np.split(steps, ends), firsts, strict=True)
    yield from (Steps(part - first, some) for part, some, first in parts)
