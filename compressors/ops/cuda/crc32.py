"""The CRC-32 of messages on a device, the same as zlib's, so that no message leaves it to be checked."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .runtime import Runtime

_THREADS = 256
_TILE = 2**15
"""Bytes of a block of threads, as in crc32.cu."""
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""x^0: the highest bit, as in crc32.cu."""


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials over GF(2) modulo CRC-32's."""
    product = 0
    for i in range(31, -1, -1):
        if a >> i & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _power(exponent: int) -> int:
    """x^exponent."""
    result, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            result = _multiply(result, square)
        square = _multiply(square, square)
        exponent >>= 1
    return result


@cache
def powers() -> NDArray[np.uint32]:
    """The powers of x that crc32.cu multiplies by, as its `Powers` has them; uint32 [1312]."""
    step = _power(32 * _THREADS)
    steps = [_multiply(value << 8 * place, step) for place in range(4) for value in range(256)]
    lanes = [_power(32 * (_THREADS - t)) for t in range(_THREADS)]
    tiles = [_power((8 * _TILE << i) % (2**32 - 1)) for i in range(32)]  # x^(2^32 - 1) is 1
    return np.array(steps + lanes + tiles, np.uint32)


class Checksums:
    """Works out the CRC-32 of messages on one device, their own place for it (bytes 28 to 31) as zeros."""

    def __init__(self, runtime: Runtime) -> None:
        """Places the powers of x on the device."""
        self._runtime = runtime
        self._powers = runtime.place(powers())

    def add(self, message: Any, sum_of_tiles: Any) -> None:
        """Works out one checksum. Does not wait.

        Args:
            message: uint8, at least a header (32 bytes), at any address.
            sum_of_tiles: uint32 [1], zero; receives the checksum's complement.
        """
        size = int(message.size)
        arguments = (message, size, self._powers, sum_of_tiles)
        self._runtime.launch("crc32", "sum_message", -(-size // _TILE), _THREADS, *arguments)

    def seal(self, payload: Any, starts: list[int], ends: list[int]) -> None:
        """Writes the checksum of each message into its header. Does not wait.

        Args:
            payload: uint8, messages one after the other.
            starts: where they begin.
            ends: where they end.
        """
        count = len(starts)
        sums = self._runtime.zeros(count, np.uint32)
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            self.add(payload[start:end], sums[i : i + 1])
        placed = self._runtime.place(np.array(starts, np.int64))
        arguments = (sums, placed, count, payload)
        self._runtime.launch("crc32", "seal", -(-count // _THREADS), _THREADS, *arguments)
