"""Faults of messages from the wire: the CPU's readers raise at once, kernels set bits.

What kernels find is gathered on the device, so that many calls need one fetch.
"""

from abc import ABC, abstractmethod
from typing import Any

from ..errors import CorruptMessage
from .array import Array

_WRONG_INPUT = {
    1: "a symbol needs more bits than it is given",
    4: "positions do not ascend",
}
"""Of an encoder: a mistake of the caller's. Bits as in faults.cuh."""
CORRUPT = {
    2: "bits after the last element or symbol are set",
    8: "the Golomb-Rice table is not one of ascending positions of these elements",
    16: "a Golomb-Rice block does not end where its last position and its size say",
    32: "a stream of Huffman codes does not end where its length says",
    64: "positions do not ascend, or pass the last one",
    128: "the body does not hold as many elements as the header says",
    256: "packed indices do not ascend within their chunks, or padding is not zero",
    512: "a value is not finite, smaller than tau, or not of its word's sign",
    1024: "a level is 0; levels are 1 to 255",
    2048: "a value is not finite",
    4096: "a block's range is not finite, or its width is none that is written",
    8192: "a bin's value is not finite, or scaled as none is written",
    16384: "an 8-bit float is no number",
    32768: "a block is scaled as none is written",
    65536: "a level is more than its form has",
    131072: "a word's sign is not that of its value",
}
"""Of a decoder: bytes that no encoder writes."""

WRONG_CHECKSUM = "the checksum does not match"
WRONG_LENGTHS = {
    "header": "bytes are left that are less than a header",
    "body": "a header says that its body is longer than what is there",
    "most": "there are more messages than there can be",
}
"""Of a payload that cannot be cut into messages."""


class Faults(ABC):
    """What is wrong with one message."""

    array: Any = None
    """For a kernel: int32 [1], a set of bits."""

    @abstractmethod
    def verify(self, message: Array, crc: int) -> None:
        """Whether a message has this checksum.

        Args:
            message: uint8, header and body.
            crc: what the header says.

        Raises:
            CorruptMessage: it has another; on a device `check` raises that.
        """

    def check(self) -> None:  # noqa: B027 (who raises at once has nothing left)
        """Raises CorruptMessage for what was found, once all results were fetched.

        What readers gave before is not to be used until then.
        """


def raise_for(faults: int) -> None:
    """Raises CorruptMessage for what a decoder found, ValueError for what an encoder did."""
    for bit, text in CORRUPT.items():
        if faults & bit:
            raise CorruptMessage(text)
    for bit, text in _WRONG_INPUT.items():
        if faults & bit:
            raise ValueError(text)


def fault(bit: int) -> CorruptMessage:
    """The error for one of them."""
    return CorruptMessage(CORRUPT[bit])
