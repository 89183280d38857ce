"""Conversions between float32 and shorter formats in integer arithmetic that vectorizes.

To a shorter format: rounded to nearest, ties to even, subnormal numbers included; what is larger than
the largest finite number becomes that number. Bits are int32 throughout.
"""

import numpy as np
from numba import njit

_MAGNITUDE = np.int32(0x7FFFFFFF)
_ONE, _SIGN8, _SIGN16 = np.int32(1), np.int32(0x80), np.int32(0x8000)
_LARGEST16, _LARGEST_BF16, _LARGEST8 = np.int32(0x7BFF), np.int32(0x7F7F), np.int32(0x7E)
# Added to a magnitude below the smallest normal number, these leave its rounded multiple of the smallest
# subnormal number in the lowest bits of the sum.
_MAGIC16, _MAGIC8 = np.float32(0.5), np.float32(2.0**14)
_SUBNORMAL16, _SUBNORMAL8 = np.float32(2.0**-24), np.float32(2.0**-9)


@njit(nogil=True, cache=True)
def _bits(a):  # type: ignore[no-untyped-def]
    return np.float32(a).view(np.int32)


@njit(nogil=True, cache=True)
def _float(bits):  # type: ignore[no-untyped-def]
    return np.int32(bits).view(np.float32)


@njit(nogil=True, cache=True)
def _drop_bits(magnitude, count):  # type: ignore[no-untyped-def]
    """magnitude >> count, rounded to nearest, ties to even."""
    odd = (magnitude >> count) & _ONE
    return np.int32((magnitude + odd + (_ONE << (count - _ONE)) - _ONE) >> count)


@njit(nogil=True, cache=True)
def to_fp16(a):  # type: ignore[no-untyped-def]
    """The float16 bits of a finite float32."""
    magnitude = np.int32(_bits(a) & _MAGNITUDE)
    short = np.int32(_drop_bits(magnitude, np.int32(13)) - np.int32(112 << 10))
    tiny = np.int32(_bits(_float(magnitude) + _MAGIC16) - _bits(_MAGIC16))
    short = short if magnitude >= np.int32(113 << 23) else tiny
    short = short if short < _LARGEST16 else _LARGEST16
    return np.int32(short | ((_bits(a) >> np.int32(16)) & _SIGN16))


@njit(nogil=True, cache=True)
def from_fp16(short):  # type: ignore[no-untyped-def]
    """The float32 of float16 bits that are neither infinite nor NaN."""
    magnitude = np.int32(short & np.int32(0x7FFF))
    normal = _float((magnitude << np.int32(13)) + np.int32(112 << 23))
    value = normal if magnitude >= np.int32(1 << 10) else np.float32(magnitude) * _SUBNORMAL16
    return _float(_bits(value) | ((np.int32(short) & _SIGN16) << np.int32(16)))


@njit(nogil=True, cache=True)
def to_bf16(a):  # type: ignore[no-untyped-def]
    """The bfloat16 bits of a finite float32."""
    short = _drop_bits(np.int32(_bits(a) & _MAGNITUDE), np.int32(16))
    short = short if short < _LARGEST_BF16 else _LARGEST_BF16
    return np.int32(short | ((_bits(a) >> np.int32(16)) & _SIGN16))


@njit(nogil=True, cache=True)
def from_bf16(short):  # type: ignore[no-untyped-def]
    """The float32 of bfloat16 bits."""
    return _float(np.int32(short) << np.int32(16))


@njit(nogil=True, cache=True)
def to_fp8(a):  # type: ignore[no-untyped-def]
    """The float8 e4m3fn bits of a finite float32."""
    magnitude = np.int32(_bits(a) & _MAGNITUDE)
    short = np.int32(_drop_bits(magnitude, np.int32(20)) - np.int32(120 << 3))
    tiny = np.int32(_bits(_float(magnitude) + _MAGIC8) - _bits(_MAGIC8))
    short = short if magnitude >= np.int32(121 << 23) else tiny
    short = short if short < _LARGEST8 else _LARGEST8
    return np.int32(short | ((_bits(a) >> np.int32(24)) & _SIGN8))


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
