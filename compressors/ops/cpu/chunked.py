"""The k largest magnitudes of every chunk on the CPU.

A chunk lies in the first-level cache once its magnitudes are taken, and counting there what reaches
a magnitude costs a fraction of reading it. So the cut, the magnitude from which on to send, is
searched by counting: from the last chunk's cut outward, then by halves. Then the fused threshold pass
runs over the chunk. What is sent does not depend on where the search began.
"""

import numpy as np
from numba import njit

from ..array import Floats32, Words
from ..interface import SMALLEST_TAU, Selected, check_chunks
from .bits import Rows, floats
from .threshold import WGT, lanes_of, selected, take_out
from .topk import trim

_LARGEST = np.float32(np.finfo(np.float32).max)
_BROKEN = np.float32(-1)
_ZERO = np.float32(0)
_INFINITE_KEY = 0x7F800000
_NOTHING = np.int64(0)  # a literal 0 would have what takes it compiled once more
_FIRST_STEP = 1 << 18
"""About 2% of a magnitude: what neighbouring chunks' cuts differ by when some forty are sent of each."""


@njit(nogil=True, cache=True)
def _take_magnitudes(residual, gradient, magnitudes):  # type: ignore[no-untyped-def]
    """Writes |residual + gradient|, and a negative number where that is not finite."""
    for j in range(residual.size):
        magnitude = abs(residual[j] + gradient[j])
        magnitudes[j] = magnitude if magnitude <= _LARGEST else _BROKEN


@njit(nogil=True, cache=True)
def _reaching(keys, cut):  # type: ignore[no-untyped-def]
    count = np.uint32(0)
    for j in range(keys.size):
        # The cast keeps the sum in 32-bit lanes; numba would widen it.
        count = np.uint32(count + np.uint32(keys[j] >= cut))
    return np.int64(count)


@njit(nogil=True, cache=True)
def _find_cut(keys, keep, guess):  # type: ignore[no-untyped-def]
    """The key from which on to send: `keep` keys reach it, or more if some are equal to it.

    Keys, int32 [length], are bits of magnitudes, which order as these do; negative ones do not count. Where
    fewer than `keep` are greater than 0, the cut is 0. The search begins at `guess`.
    """
    if keep >= keys.size:
        return 0
    low, high, step = 0, _INFINITE_KEY, _FIRST_STEP  # enough reach low, or all; too few reach high
    probe = min(max(guess, 1), high - 1)
    while high - low > 1:
        count = _reaching(keys, np.int32(probe))
        if count == keep:
            return probe
        if count > keep:
            low = probe
        else:
            high = probe
        probe = low + (high - low) // 2
        if high == _INFINITE_KEY:
            probe = min(probe, low + step)
        elif low == 0:
            probe = max(probe, high - step)
        step *= 2
    return low


@njit(nogil=True, cache=True)
def _fill_up(residual, gradient, zeros, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """Sends all of one chunk but zeros, and of those the first `zeros`, which the threshold pass cannot."""
    for j in range(residual.size):
        a = residual[j] + gradient[j]
        if abs(a) <= _LARGEST:
            if a != _ZERO or zeros > 0:
                words[sent] = np.uint32((base + j) << 1) | np.uint32(a < _ZERO)
                values[sent] = a + _ZERO  # -0.0 + 0.0 is 0.0: sign and word agree
                sent += 1
                zeros -= a == _ZERO
                a = _ZERO
            residual[j] = a
        else:
            tally[0] += np.float64(residual[j]) * np.float64(residual[j])
            tally[1] += 1
    return sent


@njit(nogil=True, cache=True)
def _take_out_rows(rule, lanes, rows, chunk, keep, words, values, ends, tallies):  # type: ignore[no-untyped-def]
    magnitudes, sent = np.empty(chunk, np.float32), _NOTHING
    keys = magnitudes.view(np.int32)
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        guess, tally = _NOTHING, tallies[i]
        for low in range(0, residual.size, chunk):
            r, g, base = residual[low : low + chunk], gradient[low : low + chunk], rows[i, 3] + low
            _take_magnitudes(r, g, magnitudes)
            cut = _find_cut(keys[: r.size], keep, guess)
            if cut == 0:
                zeros = keep - _reaching(keys[: r.size], np.int32(1))
                sent = _fill_up(r, g, zeros, base, words, values, sent, tally)
                continue
            guess = cut
            tau = np.int32(cut).view(np.float32)
            stop = take_out(rule, lanes, r, g, tau, base, words, values, sent, tally)
            if stop - sent > keep:
                chunk_words, beside = words[sent:stop], values[sent:stop]
                stay, tally[0] = trim(chunk_words, beside, tau, keep, base, r, tally[0])
                stop = sent + stay
            sent = stop
        ends[i] = sent


def chunked_rows(
    rows: Rows, chunk: int, keep: int, words: Words, values: Floats32, vectorized: bool
) -> Selected:
    """See `Ops.take_largest_of_chunks`, and `threshold_rows` for the arguments; `values` are float32."""
    check_chunks(chunk, keep)
    ends, tallies = np.empty(len(rows), np.int64), np.zeros((len(rows), 2))
    _take_out_rows(WGT, lanes_of(vectorized), rows, chunk, keep, words, values, ends, tallies)
    return selected(ends, tallies, np.full(len(rows), SMALLEST_TAU, np.float32))
