"""A message: one update as bytes (docs/reference/messages.md), but for the parameters that it is about.

The header and the checksum are written here. `positions.py` writes positions (by `ops/cpu/golomb_rice.py` and
others), `values.py` values and symbols (by `ops/cpu/bitpack.py` and `ops/cpu/huffman.py`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..ops.array import Bytes, aligned, readonly
from ..ops.cpu.bits import Section
from ..ops.interface import LARGEST_TAU, SMALLEST_TAU, Form
from .codec import Codec, Head, copied, joined, need
from .forms import FORM_OF_CODE, FORMS, GRADIENT_FORMS
from .positions import BUILTIN, DENSE, codec_by_code, dense_section, read_dense
from .update import Segments, Update
from .values import PlannedValues, plan_values, read_values

VERSION = 2
LARGEST_N = 2**31 - 1
MAGIC = b"tg"
_HEADER = struct.Struct("<2sBBBBBBIIQI")
HEADER_BYTES = _HEADER.size
_CRC = struct.Struct("<I")
_CRC_AT = HEADER_BYTES - 4
_FLAGS_AT = 5
_HUFFMAN, _CODE_PER_PARAMETER, _TAU_PER_PARAMETER, _NONFINITE = 1, 2, 4, 128
_LEAST_TAU, _MOST_TAU = np.array([SMALLEST_TAU, LARGEST_TAU], np.float32).view(np.uint32)


@dataclass(frozen=True)
class NonFinite:
    """A refusal, instead of an update: the gradient held NaN or Inf."""

    form: Form
    n: int
    """Elements of the bucket."""
    ordinal: int
    """Which of the bucket's parameters, from 0."""


def write_all(updates: Sequence[tuple[Update, str]], symbols: str, threads: int = 1) -> Bytes:
    """Messages, one after the other, in the CPU's memory: uint8, of each HEADER_BYTES and the body.

    Args:
        updates: in the CPU's memory; and the name of its codec, or `auto` for the smallest.
        symbols: `raw`, `huffman`, or `auto` for the smaller.
        threads: how many may work at once; the bytes do not depend on it.

    Raises:
        ValueError: an update has more than LARGEST_N elements, or its codec cannot write it.
    """
    planned = [_plan(update, codec, symbols, threads) for update, codec in updates]
    payload, at = np.zeros(sum(HEADER_BYTES + body.size for _, body in planned), np.uint8), 0
    for fields, body in planned:
        message = payload[at : at + HEADER_BYTES + body.size]
        body.write(message[HEADER_BYTES:])
        _HEADER.pack_into(message.data, 0, MAGIC, VERSION, *fields, body.size, 0)
        _seal(message)
        at += message.size
    return payload


def _plan(update: Update, codec: str, symbols: str, threads: int) -> tuple[tuple[int, ...], Section]:
    """The header's fields from the form to k, and the body."""
    if update.n > LARGEST_N:
        raise ValueError(f"n = {update.n}: a message holds at most {LARGEST_N} elements")
    values = plan_values(update, "raw" if codec == "raw" else symbols, threads)
    code, positions = DENSE, dense_section(update)
    if update.words is not None:
        chosen, positions = _shortest(update, codec, values, threads)
        code = chosen.code
        if chosen.with_values:
            values = PlannedValues(joined([]))
    elif codec != "auto":
        raise ValueError(f"{codec} cannot write an update without positions")
    flags = _HUFFMAN * values.huffman + _CODE_PER_PARAMETER * (values.by_parameter is not None)
    sections = [positions, values.section]
    if update.taus is not None:
        differ = bool((update.taus != update.taus[0]).any())
        flags += _TAU_PER_PARAMETER * differ
        sections.insert(0, copied(update.taus if differ else update.taus[:1]))
    fields = (FORMS[update.form].code, code, flags, values.bits, 0, update.n, update.k)
    return fields, joined(sections)


def _shortest(update: Update, codec: str, values: PlannedValues, threads: int) -> tuple[Codec, Section]:
    """The codec of the shortest body, the first of several, and what it writes."""
    best: tuple[int, Codec, Section] | None = None
    for candidate in BUILTIN:
        section = candidate.measure(update, threads) if codec in ("auto", candidate.name) else None
        if section is not None:
            size = section.size + (0 if candidate.with_values else values.section.size)
            if best is None or size < best[0]:
                best = size, candidate, section
    if best is None:
        raise ValueError(f"{codec} cannot write an update of {update.k} of {update.n} {update.form}")
    return best[1:]


def write_nonfinite(refusal: NonFinite) -> Bytes:
    """A message that says why there is no update; uint8 [HEADER_BYTES]."""
    message = np.empty(HEADER_BYTES, np.uint8)
    fields = FORMS[refusal.form].code, 0, _NONFINITE, 0, 0, refusal.n, refusal.ordinal
    _HEADER.pack_into(message.data, 0, MAGIC, VERSION, *fields, 0, 0)
    _seal(message)
    return message


def _seal(message: Bytes) -> None:
    _CRC.pack_into(message.data, _CRC_AT, isal_zlib.crc32(message.data))


def is_refusal(message: Bytes) -> bool:
    """Whether these bytes claim to be what `write_nonfinite` writes; nothing else of them is checked."""
    return message.size >= HEADER_BYTES and bool(message[_FLAGS_AT] & _NONFINITE)


class _Header(NamedTuple):
    form: Form
    codec: int
    flags: int
    bits: int
    n: int
    k: int


def length_of(payload: Bytes) -> int:
    """Bytes of the message that a payload begins with, by its header.

    Raises:
        CorruptMessage: it does not begin with a header of this version, or ends before its message does.
    """
    if payload.size < HEADER_BYTES:
        raise CorruptMessage(f"{payload.size} bytes are less than a header, which has {HEADER_BYTES}")
    magic, version, *_, length, _ = _HEADER.unpack_from(payload.data)
    if magic != MAGIC:
        raise CorruptMessage(f"it begins with {bytes(magic)!r}, a message with {MAGIC!r}")
    if version != VERSION:
        raise CorruptMessage(f"version {version}; this program reads version {VERSION}")
    if length > payload.size - HEADER_BYTES:
        raise CorruptMessage(
            f"length: the header says {length} bytes of body, there are {payload.size - HEADER_BYTES}"
        )
    return HEADER_BYTES + int(length)


def _read_header(message: Bytes) -> _Header:
    """A header whose checksum is right and whose fields are in their ranges."""
    if length_of(message) != message.size:
        raise CorruptMessage(f"length: {message.size - length_of(message)} bytes follow the message")
    _, _, form, codec, flags, bits, zero, n, k, _, stored_crc = _HEADER.unpack_from(message.data)
    whole = message.data
    if (
        isal_zlib.crc32(whole[HEADER_BYTES:], isal_zlib.crc32(bytes(whole[:_CRC_AT]) + bytes(4)))
        != stored_crc
    ):
        raise CorruptMessage("the checksum does not match")
    if form not in FORM_OF_CODE:
        raise CorruptMessage(f"form {form} is unknown; known are {sorted(FORM_OF_CODE)}")
    if zero or n > LARGEST_N:
        raise CorruptMessage(f"the reserved byte is {zero}, or n = {n} is out of range")
    if flags == _NONFINITE:
        if codec or bits or message.size > HEADER_BYTES:
            raise CorruptMessage("a message without an update has a body, a codec or bits")
    elif flags & ~(_HUFFMAN | _CODE_PER_PARAMETER | _TAU_PER_PARAMETER):
        raise CorruptMessage(f"flags {flags} are unknown")
    elif k > n:
        raise CorruptMessage(f"k: {k} elements sent of {n}")
    return _Header(FORM_OF_CODE[form], codec, flags, bits, n, k)


def read_nonfinite(message: Bytes, n: int) -> NonFinite:
    """The refusal that a message of a bucket of n elements is; CorruptMessage if it is none."""
    header = _read_header(message)
    if header.flags != _NONFINITE:
        raise CorruptMessage("flags: a refusal has no others")
    if header.form not in GRADIENT_FORMS:
        raise CorruptMessage(f"form: a refusal of {header.form}")
    if header.n != n:
        raise CorruptMessage(f"n: a refusal of {header.n} elements where {n} are due")
    return NonFinite(header.form, n, header.k)


def read(
    message: Bytes, segments: Segments, threads: int = 1, forms: Sequence[Form] = GRADIENT_FORMS
) -> Update:
    """The update that a message holds, checked in every part; it may share the message's memory.

    Args:
        message: uint8, exactly the message, untrusted.
        segments: the parameters that it must be about. Nothing larger than them and the message is allocated.
        threads: how many may work at once.
        forms: those that are expected.

    Raises:
        CorruptMessage: it is no message that `write_all` could have made, or of other parameters or forms.
    """
    header, body = _read_header(message), readonly(message)[HEADER_BYTES:]
    if header.flags == _NONFINITE:
        raise CorruptMessage("a refusal where an update is due")
    if header.form not in forms:
        raise CorruptMessage(f"form: {header.form} where {' or '.join(forms)} is due")
    if header.n != segments.n:
        raise CorruptMessage(f"n: an update of {header.n} elements where {segments.n} are due")
    taus, body = _read_taus(body, header, len(segments))
    form, words, flags = header.form, None, header.flags
    if header.codec == DENSE:
        if FORMS[form].has_tau:
            raise CorruptMessage(f"codec: {form} needs positions")
        counts, used = read_dense(body, segments, header.k)
    else:
        codec, head = codec_by_code(header.codec), Head(form, segments, header.k)
        words, used = codec.read(body, head, threads)
        counts = segments.counts_of(words)
        if codec.with_values:
            if used != body.size or flags & (_HUFFMAN | _CODE_PER_PARAMETER) or header.bits:
                raise CorruptMessage("something follows elements that are written out")
            return Update(form, segments, words, counts, codec.values(body[:used], head, words), taus)
    symbols = header.bits, bool(flags & _HUFFMAN), bool(flags & _CODE_PER_PARAMETER)
    values, bits, block, tables = read_values(body[used:], form, counts, symbols, threads)
    return Update(form, segments, words, counts, values, taus, bits, block, tables)


def _read_taus(body: Bytes, header: _Header, parameters: int) -> tuple[NDArray[np.float32] | None, Bytes]:
    """The taus of all parameters, of forms that have one, and what is left of the body."""
    by_parameter = bool(header.flags & _TAU_PER_PARAMETER)
    if not FORMS[header.form].has_tau:
        if by_parameter:
            raise CorruptMessage(f"flags: {header.form} has no tau")
        return None, body
    size = 4 * (parameters if by_parameter else 1)
    need(body, size, "taus")
    taus = aligned(body[:size], "<f4")
    bits = taus.view(np.uint32)  # floats above 0 are ordered as their bits are; others are larger
    if not ((bits >= _LEAST_TAU) & (bits <= _MOST_TAU)).all():
        raise CorruptMessage(f"tau is out of range, 0x{int(bits.min()):08x} to 0x{int(bits.max()):08x}")
    if by_parameter and (bits == bits[0]).all():
        raise CorruptMessage("flags: all parameters have the same tau")
    return taus if by_parameter else np.full(parameters, taus[0], np.float32), body[size:]
