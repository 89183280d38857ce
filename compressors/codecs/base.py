"""The codec interface.

Contract: a codec's `code` stands in every message it wrote. Two codecs may share one only if each
reads the other's bytes, and the bytes of a code never change their meaning.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..kernels import sparse
from ..kernels.threshold import ThresholdRule
from ..update import VALUE_FORMAT, SparseUpdate

Bytes = NDArray[np.uint8]


class Codec(ABC):
    """Writes the body of a message and reads it back; the header keeps rule, n, k and tau."""

    name: ClassVar[str]
    code: ClassVar[int]

    @abstractmethod
    def size(self, rule: ThresholdRule, n: int, k: int) -> int:
        """Bytes of a body, exactly, without writing it."""

    @abstractmethod
    def encode(self, update: SparseUpdate, body: Bytes) -> None:
        """Writes the update into `body`, uint8 of exactly `size` bytes, zeroed."""

    @abstractmethod
    def decode(self, body: Bytes, rule: ThresholdRule, n: int, k: int, tau: np.float32) -> SparseUpdate:
        """Reads a body of exactly `size` bytes.

        Raises:
            CorruptMessage: positions out of order or range, a value the rule cannot have sent, or
                padding that is not zero.
        """


def aligned(body: Bytes, dtype: str) -> NDArray[Any]:
    """The bytes as an array of another type, copied only if they lie at an odd address."""
    return np.require(body.view(dtype), requirements="A")


def write_values(update: SparseUpdate, body: Bytes) -> None:
    """Writes what stands beside the positions: float32 values, byte levels, or nothing."""
    if update.rule == "wgt":
        body[:] = update.values.view(np.uint8)
    elif update.rule == "qgt":
        body[:] = update.values


def read_values(body: Bytes, rule: ThresholdRule, words: NDArray[np.uint32], tau: np.float32) -> NDArray[Any]:
    """Reads what `write_values` wrote and checks it.

    Args:
        body: uint8, value_bytes * k.
        rule: decides the values' type.
        words: uint32 [k], signs filled in.
        tau: no value sent is smaller.

    Raises:
        CorruptMessage: a float that is not finite, below tau or of another sign than its word; a
            level of 0.
    """
    if rule == "wgt":
        values = aligned(body, "<f4")
        if not sparse.check_values(words, values, tau):
            raise CorruptMessage("a value is not finite, smaller than tau, or not of its word's sign")
        return values
    if rule == "qgt":
        if body.size and int(body.min()) == 0:
            raise CorruptMessage("a level is 0; levels are 1 to 255")
        return body
    return np.empty(0, np.uint8)


def value_bytes(rule: ThresholdRule) -> int:
    """Bytes beside each position."""
    return VALUE_FORMAT[rule].value_bytes
