"""What kernels may find wrong with their input, gathered on the device, so that many calls need one fetch."""

from typing import Any

import numpy as np

from ...errors import CorruptMessage
from .returns import Returns
from .runtime import Runtime

_WRONG_INPUT = {
    1: "a symbol needs more bits than it is given",
    4: "positions do not ascend",
}
"""Of an encoder: a mistake of the caller's. Bits as in faults.cuh."""
_CORRUPT = {
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


class Faults:
    """Receives what kernels find wrong; what they wrote before `check` is not to be used."""

    def __init__(self, runtime: Runtime, returns: Returns | None = None) -> None:
        """Nothing is wrong yet; what is found stands among other results if `returns` is given."""
        self._runtime = runtime
        self._slot = (returns or Returns(runtime)).take(1, np.int32)
        self.array: Any = self._slot.array
        """For a kernel: int32 [1], a set of bits."""

    def check(self) -> None:
        """Waits for the kernels, and raises for what they found.

        Raises:
            CorruptMessage: a decoder's bytes are not valid.
            ValueError: an encoder's input is not.
        """
        raise_for(int(self._runtime.fetch(self.array)[0]))

    def check_fetched(self) -> None:
        """The same, where `returns` was fetched after the kernels were started."""
        raise_for(int(self._slot.values[0]))


def raise_for(faults: int) -> None:
    """Raises for faults that were fetched with something else; see `Faults.check`."""
    for bit, text in _CORRUPT.items():
        if faults & bit:
            raise CorruptMessage(text)
    for bit, text in _WRONG_INPUT.items():
        if faults & bit:
            raise ValueError(text)
