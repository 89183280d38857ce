"""What passes on a device report, in one small array there, so that many passes need one fetch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..readback import Readback

_FIELDS = np.dtype([("sent", "<i8"), ("squares", "<f8"), ("nonfinite", "<i8"), ("tau", "<f4"), ("", "<u4")])
"""As in report.cuh."""


class Reports:
    """The reports of passes that run one after the other.

    A sparse pass appends its words behind those of the pass before it; where that was stands in the
    report of that pass, on the device. Quantizing passes send every element and hand on no such place: they
    do not go between sparse ones.
    """

    def __init__(self, passes: int, returned: Readback) -> None:
        """Makes room on the device for as many passes, among other results."""
        self._width = _FIELDS.itemsize // 8
        self._slot = returned.take((passes + 1) * self._width, np.int64)
        self._room, self._begun = passes, 0

    def begin(self, passes: int = 1) -> Any:
        """For a kernel: the report of the pass before (no words, at first), and those of the next behind it.

        Args:
            passes: how many of these, for a kernel that goes over several parameters.

        Raises:
            ValueError: there is no room for another pass.
        """
        first, self._begun = self._begun, self._begun + passes
        if self._begun > self._room:
            raise ValueError(f"there is room for {self._room} reports only")
        return self._slot.array[first * self._width : (self._begun + 1) * self._width]

    def fetched(self) -> NDArray[np.void]:
        """Those of all passes begun, in order, where `returned` was fetched after the last one.

        Fields: `sent`, words in the output after the pass; `squares`, of the residual kept, summed up in any
        order; `nonfinite`, more than 0 where a sum of residual and gradient was; `tau`, what was sent by, if
        the pass finds it (top-k).
        """
        return self._slot.values.view(_FIELDS)[1 : self._begun + 1]
