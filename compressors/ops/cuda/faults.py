"""What kernels find wrong, gathered on the device, so that many calls need one fetch."""

import numpy as np

from ...errors import CorruptMessage
from .. import faults
from ..array import Array
from ..returns import Returns, Slot
from .crc32 import Checksums
from .runtime import Runtime


class Faults(faults.Faults):
    """See `ops.faults.Faults`; what kernels wrote before `check` is not to be used."""

    def __init__(
        self, runtime: Runtime, returns: Returns | None = None, checksums: Checksums | None = None
    ) -> None:
        """Nothing is wrong yet.

        Args:
            runtime: the device.
            returns: where what is found stands among other results; without it `check` waits.
            checksums: of this device, for `verify`.
        """
        self._returns = returns or Returns(runtime)
        self._checksums = checksums
        self._slot = self._returns.take(1, np.int32)
        self.array = self._slot.array
        self._sums: list[tuple[Slot, int]] = []

    def verify(self, message: Array, crc: int) -> None:
        """See `ops.faults.Faults.verify`. Does not wait."""
        assert self._checksums is not None
        slot = self._returns.take(1, np.uint32)
        self._checksums.add(message, slot.array)
        self._sums.append((slot, crc))

    def check(self) -> None:
        """Raises for what was found.

        Raises:
            CorruptMessage: a decoder's bytes are not valid.
            ValueError: an encoder's input is not.
        """
        if self._slot.host is None:
            self._returns.fetch()
        for slot, crc in self._sums:
            if ~int(slot.values[0]) & 0xFFFFFFFF != crc:
                raise CorruptMessage(faults.WRONG_CHECKSUM)
        faults.raise_for(int(self._slot.values[0]))
