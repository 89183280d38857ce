"""How many bits a layer is worth: Oland and Raj, sections 3.2 and 3.4, Algorithm 1.

Logarithms are worked out in integers to 32 places behind the point, so that every machine rounds to the
same number of bits; a library's log2 may differ in its last bit.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LEAST_SAMPLE = 256
"""A sample of fewer elements says little about 16 bins; smaller layers are taken whole."""

_PLACES = 32
_GUARD = 16
"""Further places to work in, so that what squaring drops stays below the last place."""


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


def fixed_entropy(counts: NDArray[np.int64]) -> int:
    """The entropy of a histogram in bits times 2^32, an integer.

    H = log2(m) - sum(h log2(h)) / m, m being the sum of the counts h; 0 for an empty histogram.
    """
    filled = [int(count) for count in counts if count > 0]
    m = sum(filled)
    return (m * _fixed_log2(m) - sum(h * _fixed_log2(h) for h in filled)) // m if m else 0


def sample_size(n: int, fraction: float) -> int:
    """How many of n elements are looked at: ceil(fraction n), at least LEAST_SAMPLE, at most n."""
    return min(n, max(math.ceil(fraction * n), LEAST_SAMPLE))


def bits_of_sample(counts: NDArray[np.int64], floor: float) -> int:
    """The paper's N = H + c: bits for a layer, 1 to 16, from the entropy H of a sample's symbols.

    The nearest integer to H + c, c being `floor`; counts are as from `by_range.count_symbols`.
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
