"""Reads the messages of all updates of a bucket in a few calls."""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config.base import LARGEST_TAU, SMALLEST_TAU
from ...errors import CorruptMessage
from ...ops.array import Bytes
from ...ops.cpu import byte_rows
from ...ops.offsets import Numbers
from ..codecs.every import Every
from ..forms import FORMS, Form
from ..message import HEADER, HEADER_BYTES, LENGTH_AT, SYMBOLS
from ..quantized import QUANTIZED
from .headers import fit, headers
from .odd import Odd, must
from .reading_positions import read_positions
from .reading_values import read_values
from .updates import UpdateColumns


def read(
    form: Form, n: Numbers, payload: Bytes, threads: int, behind: int = 0
) -> tuple[UpdateColumns, int] | None:
    """The updates of the messages that fill a payload; None if they are to be read one by one.

    Args:
        form: of all.
        n: int64 [m], elements that each is about; where a sign stands apart, there may be fewer messages.
        payload: uint8, untrusted. Values may share its memory.
        threads: how many may work at once.
        behind: how many messages of another form follow.

    Returns:
        The updates, and where the messages behind them begin.
    """
    try:
        return _read(form, n, payload, threads, behind)
    except (Odd, CorruptMessage):
        return None


@dataclass(frozen=True, eq=False)
class _Messages:
    """Where messages stand, and what their headers say."""

    starts: Numbers
    """int64 [m]"""
    ends: Numbers
    """int64 [m]"""
    headers: NDArray[Any]
    """HEADER [m]"""


def _read(form: Form, n: Numbers, payload: Bytes, threads: int, behind: int) -> tuple[UpdateColumns, int]:
    traits = FORMS[form]
    messages = _cut(payload, n.size, behind, exactly=not traits.sign_apart)
    said, n = messages.headers, n[: messages.starts.size]
    counts, taus = said["k"].astype(np.int64), np.ascontiguousarray(said["tau"]) if traits.has_tau else None
    _check_headers(form, n, said, counts, taus)
    bodies, words, chunks = messages.starts + HEADER_BYTES, None, None
    if (said["codec"] == Every.code).all():
        must(form in QUANTIZED or form in ("fp16", "bf16"))  # float32 is sent so in one message alone
        must(bool((counts == n).all()))
    else:
        words, bodies, chunks = read_positions(form, n, said, payload, bodies, messages.ends)
    values = None
    if form in ("bgt", "strom"):
        must(bool((bodies == messages.ends).all()) and not said["symbols"].any())
    else:
        values = read_values(form, counts, payload, bodies, messages.ends, said["symbols"], threads)
    must(_sums_match(payload, messages))
    return UpdateColumns(form, n, words, values, taus, chunks), int(messages.ends[-1])


def _cut(payload: Bytes, most: int, behind: int, *, exactly: bool) -> _Messages:
    """Cuts a payload by the lengths in headers, and leaves out some messages behind the others."""
    bounds = np.empty(most + behind + 1, np.int64)
    count = byte_rows.bounds_of(payload, HEADER_BYTES, LENGTH_AT, bounds) - behind
    must(count > 0 and (count == most or not exactly))
    starts, ends = bounds[:count], bounds[1 : count + 1]
    return _Messages(starts, ends, byte_rows.take_rows(payload, starts, HEADER))


def _check_headers(
    form: Form, n: Numbers, said: NDArray[Any], counts: Numbers, taus: NDArray[np.float32] | None
) -> None:
    """Whether headers say what is due; codecs, lengths and checksums are looked at elsewhere."""
    must(fit(said, headers(form, n, counts, taus)) and bool((counts <= n).all()))
    must(int(said["symbols"].max()) < len(SYMBOLS))
    if taus is not None:
        must(bool((taus >= np.float32(SMALLEST_TAU)).all() and (taus <= np.float32(LARGEST_TAU)).all()))
        must(not FORMS[form].sign_apart or bool((taus[1:] > taus[:-1]).all()))


def _sums_match(payload: Bytes, messages: _Messages) -> bool:
    """Whether each message has the checksum that its header says, whose own place counts as zeros."""
    cleared = messages.headers.copy()
    cleared["crc"] = 0
    heads, whole = cleared.view(np.uint8).data, payload.data
    each = zip(
        range(0, heads.nbytes, HEADER_BYTES),
        messages.starts.tolist(),
        messages.ends.tolist(),
        messages.headers["crc"].tolist(),
        strict=True,
    )
    return all(
        zlib.crc32(whole[start + HEADER_BYTES : end], zlib.crc32(heads[at : at + HEADER_BYTES])) == crc
        for at, start, end, crc in each
    )
