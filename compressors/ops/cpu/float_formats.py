"""Conversions between float32 and shorter formats in arithmetic that vectorizes.

To a shorter format: rounded to nearest, ties to even, subnormal numbers included; what is larger than
the largest finite number becomes that number. Bits are int32 throughout.
"""

import numpy as np
from numba import njit

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN, _EXPONENT = np.int32(-0x80000000), np.int32(0x7F800000)
_SIGN8, _SIGN16, _HIGH16 = np.int32(0x80), np.int32(0x8000), np.int32(-0x10000)
# The largest finite numbers and the exponents of the smallest normal ones, as bits of float32.
_LARGEST16, _LARGEST8 = np.int32(np.float32(65504).view(np.int32)), np.int32(np.float32(448).view(np.int32))
_LEAST16, _LEAST8 = np.int32(113 << 23), np.int32(121 << 23)
_LARGEST_BF16 = np.int32(0x7F7F0000).view(np.float32)
_SUBNORMAL16, _SUBNORMAL8 = np.float32(2.0**-24), np.float32(2.0**-9)


@njit(nogil=True, cache=True)
def _bits(a):  # type: ignore[no-untyped-def]
    return np.float32(a).view(np.int32)


@njit(nogil=True, cache=True)
def _float(bits):  # type: ignore[no-untyped-def]
    return np.int32(bits).view(np.float32)


@njit(nogil=True, cache=True)
def _round(a, dropped, least, largest):  # type: ignore[no-untyped-def]
    """Magnitude bits of a format with `dropped` bits less in its mantissa, and the value, with a's sign."""
    magnitude = np.int32(_bits(a) & _MAGNITUDE)
    magnitude = magnitude if magnitude < largest else largest
    exponent = np.int32(magnitude & _EXPONENT)
    exponent = exponent if exponent > least else least
    # A float32 of this size has no place for the bits to be dropped: adding it rounds.
    shift = np.int32(exponent + np.int32(dropped << np.int32(23)))
    shifted = _float(magnitude) + _float(shift)
    short = np.int32(np.int32(_bits(shifted) - shift) + np.int32(np.int32(exponent - least) >> dropped))
    return short, _float(_bits(shifted - _float(shift)) | np.int32(_bits(a) & _SIGN))


@njit(nogil=True, cache=True)
def round_to_fp16(a):  # type: ignore[no-untyped-def]
    """The float16 bits of a finite float32, and the float32 that they stand for."""
    short, value = _round(a, np.int32(13), _LEAST16, _LARGEST16)
    return np.int32(short | np.int32((_bits(a) >> np.int32(16)) & _SIGN16)), value


@njit(nogil=True, cache=True)
def from_fp16(short):  # type: ignore[no-untyped-def]
    """The float32 of float16 bits that are neither infinite nor NaN."""
    magnitude = np.int32(short & np.int32(0x7FFF))
    normal = _float((magnitude << np.int32(13)) + np.int32(112 << 23))
    value = normal if magnitude >= np.int32(1 << 10) else np.float32(magnitude) * _SUBNORMAL16
    return _float(_bits(value) | ((np.int32(short) & _SIGN16) << np.int32(16)))


@njit(nogil=True, cache=True)
def round_to_bf16(a):  # type: ignore[no-untyped-def]
    """The bfloat16 bits of a finite float32, and the float32 that they stand for."""
    a = a if a < _LARGEST_BF16 else _LARGEST_BF16
    a = a if a > -_LARGEST_BF16 else -_LARGEST_BF16
    odd = np.int32((_bits(a) >> np.int32(16)) & np.int32(1))
    rounded = np.int32(np.int32(_bits(a) + odd) + np.int32(0x7FFF))
    return np.int32(rounded >> np.int32(16)), _float(rounded & _HIGH16)


@njit(nogil=True, cache=True)
def from_bf16(short):  # type: ignore[no-untyped-def]
    """The float32 of bfloat16 bits."""
    return _float(np.int32(short) << np.int32(16))


@njit(nogil=True, cache=True)
def round_to_fp8(a):  # type: ignore[no-untyped-def]
    """The float8 e4m3fn bits of a finite float32, and the float32 that they stand for."""
    short, value = _round(a, np.int32(20), _LEAST8, _LARGEST8)
    return np.int32(short | np.int32((_bits(a) >> np.int32(24)) & _SIGN8)), value


@njit(nogil=True, cache=True)
def from_fp8(short):  # type: ignore[no-untyped-def]
    """The float32 of float8 e4m3fn bits that are not NaN."""
    magnitude = np.int32(short & np.int32(0x7F))
    normal = _float((magnitude << np.int32(20)) + np.int32(120 << 23))
    value = normal if magnitude >= np.int32(1 << 3) else np.float32(magnitude) * _SUBNORMAL8
    return _float(_bits(value) | ((np.int32(short) & _SIGN8) << np.int32(24)))


@njit(nogil=True, cache=True)
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2^exponent as a float32, exponent in -126 to 127."""
    return _float(np.int32((np.int32(exponent) + np.int32(127)) << np.int32(23)))
