"""entropy: bins of equal width, their number by a layer's entropy or RMS gradient (Oland and Raj).

Sections 3.2 and 3.4, Algorithm 1. Logarithms are worked out in integers to 32 places behind the point, so
that every machine rounds to the same number of bits; a library's log2 may differ in its last bit.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

from pydantic import Field

from ..lazy import np
from ..ops.array import Numbers
from ..ops.interface import Batch, Extremes, Kept, Pending
from .quantizers import Quantized, Quantizer, QuantizerInput

LEAST_SAMPLE = 256
"""A sample of fewer elements says little about 16 bins; smaller layers are taken whole."""

_PLACES = 32
_GUARD = 16
"""Further places to work in, so that what squaring drops stays below the last place."""


class Entropy(Quantizer):
    """Oland-Raj, sections 3.2 to 4: as many bins of equal width as a sample's entropy or its RMS asks for."""

    first_field = "floor"
    makes = "linear"

    kind: Literal["entropy"] = "entropy"
    form: Literal["entropy", "rms"] = "entropy"
    """b = H + floor with the entropy H (section 3.4), or b = log2(G + c0) + floor (section 3.2)."""
    floor: float = Field(default=6.0, ge=-16, le=16)
    """c, or c1 in the RMS form: bits that are always spent; -16 to 16."""
    fraction: float = Field(default=0.03, gt=0, le=1)
    """F: the share of a layer's values from which its entropy is estimated."""
    sample_bits: int = Field(default=4, ge=1, le=12)
    """M: bits to which the sample is quantized."""
    c0: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Keeps the logarithm of the RMS form above zero."""

    def apply(self, given: QuantizerInput) -> Quantized:
        """Oland-Raj, Algorithm 1: the bits of a layer first, then uniform bins over the layer."""
        ops = given.ops
        if not len(given.batch):
            return Quantized([], ops.empty(0, np.uint8), lambda: Kept(np.empty(0), np.empty(0, np.bool_)))
        ranges, pending = ops.extremes(given.batch, given.readback)
        bits = (self._bits_by_rms if self.form == "rms" else self._bits_by_entropy)(given, pending)
        work = given.room("linear", max(bits), 0)
        return Quantized(bits, work.symbols, ops.linear_between(work, bits, ranges), 0, work.tables)

    def _bits_by_rms(self, given: QuantizerInput, ranges: Pending[Extremes]) -> list[int]:
        """Section 3.2; 1 where a range is not finite."""
        rms = [part.rms for part in given.parts] or [None] * len(given.batch)
        squares = None if None not in rms else given.ops.exact_squares(given.batch, given.readback)
        given.readback.fetch()
        if squares is not None:
            with np.errstate(invalid="ignore"):  # of what is not finite
                measured = np.sqrt(squares() / given.batch.sizes).tolist()
            rms = [both[0] if both[1] is None else both[1] for both in zip(measured, rms, strict=True)]
        return [
            1 if broken else rms_bits(value or 0.0, c0=self.c0, c1=self.floor)
            for value, broken in zip(rms, ranges().nonfinite.tolist(), strict=True)
        ]

    def _bits_by_entropy(self, given: QuantizerInput, ranges: Pending[Extremes]) -> list[int]:
        """Section 3.4; 1 where a range is not finite."""
        from ..ops.cpu.by_range import count_symbols  # noqa: PLC0415 - compiles

        bits, batch = self.sample_bits, given.batch
        sizes = [sample_size(n, self.fraction) for n in batch.sizes.tolist()]
        sums = [gradient if residual is None else residual for residual, gradient in batch.pairs()]
        samples = given.ops.samples(Batch.of([None] * len(sums), sums), sizes, given.readback)
        given.readback.fetch()
        return [
            1 if broken else bits_of_sample(count_symbols(values, bits, low, high), self.floor)
            for values, low, high, broken in zip(samples(), *ranges(), strict=True)
        ]


@lru_cache(1 << 16)  # counts of samples: few numbers, again and again
def _fixed_log2(number: int) -> int:
    """floor(log2(number) * 2^32), but for errors in the last places; number is at least 1."""
    whole = number.bit_length() - 1
    one = _PLACES + _GUARD
    mantissa = number << one >> whole  # in [1, 2), `one` places behind the point
    log = whole
    for _ in range(_PLACES):
        mantissa = mantissa * mantissa >> one
        high = mantissa >> (one + 1)
        log = log << 1 | high
        mantissa >>= high
    return log


def _clip_bits(fixed: int) -> int:
    """The nearest integer (a half goes up) of a number with 32 places, brought into 1..16."""
    return min(max((fixed + (1 << (_PLACES - 1))) >> _PLACES, 1), 16)


def fixed_entropy(counts: Numbers) -> int:
    """The entropy of a histogram in bits times 2^32, an integer.

    H = log2(m) - sum(h log2(h)) / m, m being the sum of the counts h; 0 for an empty histogram.
    """
    filled = [int(count) for count in counts if count > 0]
    m = sum(filled)
    return (m * _fixed_log2(m) - sum(h * _fixed_log2(h) for h in filled)) // m if m else 0


def sample_size(n: int, fraction: float) -> int:
    """How many of n elements are looked at: ceil(fraction n), at least LEAST_SAMPLE, at most n."""
    return min(n, max(math.ceil(fraction * n), LEAST_SAMPLE))


def bits_of_sample(counts: Numbers, floor: float) -> int:
    """The paper's N = H + c: bits for a layer, 1 to 16, from the entropy H of a sample's symbols.

    The nearest integer to H + c, c being `floor`; counts are as from `count_symbols`.
    """
    return _clip_bits(fixed_entropy(counts) + round(floor * 2**_PLACES))


def rms_bits(rms: float, c0: float, c1: float) -> int:
    """The paper's N = log2(G + c0) + c1 (section 3.2), G being the root mean square of the layer's gradient.

    The nearest integer, a half upwards, 1 to 16. c0 bounds the width of a bin from above; with 1, c1 is the
    least number of bits.

    Raises:
        ValueError: G + c0 is not positive and finite, or c1 is not finite.
    """
    total = rms + c0
    if not (math.isfinite(total) and total > 0 and math.isfinite(c1)):
        raise ValueError(f"log2({rms} + {c0}) + {c1} has no finite value")
    mantissa, exponent = math.frexp(total)
    logarithm = _fixed_log2(int(mantissa * 2**53)) + ((exponent - 53) << _PLACES)
    return _clip_bits(logarithm + round(c1 * 2**_PLACES))
