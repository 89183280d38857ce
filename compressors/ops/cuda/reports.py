"""What passes on a device report, in one small array there, so that many passes need one fetch."""

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..readback import Readback
from .runtime import Runtime

GradientType = Literal["float32", "float16", "bfloat16"]
"""What a gradient's bits mean; it is converted to float32 when it is loaded."""

_FIELDS = 4
"""Of 64 bits each, as in report.cuh."""


@dataclass(frozen=True)
class Report:
    """What one pass over one parameter came to."""

    sent: int
    """Words in the output after the pass; 0 for passes that send every element."""
    residual_squares: float
    """Sum of squares of the residual that was kept. The order of summation is free: a metric, no more."""
    nonfinite: bool
    """Whether a sum of residual and gradient was infinite or no number."""
    tau: np.float32
    """What was sent by, where the pass finds it (top-k); else 0."""


class Reports:
    """The reports of passes that run one after the other.

    A sparse pass appends its words behind those of the pass before it; where that was stands in the
    report of that pass, on the device. Nothing is waited for until `fetch`. Quantizing passes send every
    element and hand on no such place: they do not go between sparse ones.
    """

    def __init__(self, runtime: Runtime, passes: int, returned: Readback | None = None) -> None:
        """Makes room on the device for as many passes; among other results if `returned` is given."""
        self._runtime = runtime
        self._slot = (returned or Readback(runtime)).take((passes + 1) * _FIELDS, np.int64)
        self._room, self._begun = passes, 0

    def begin(self) -> Any:
        """For a kernel: the report of the pass before (no words, at first), and that of the next behind it.

        Raises:
            ValueError: there is no room for another pass.
        """
        if self._begun == self._room:
            raise ValueError(f"there is room for {self._room} reports only")
        self._begun += 1
        return self._slot.array[(self._begun - 1) * _FIELDS : (self._begun + 1) * _FIELDS]

    def fetch(self) -> list[Report]:
        """The reports of all passes begun, in order; waits for them."""
        return self._read(self._runtime.fetch(self._slot.array))

    def fetched(self) -> list[Report]:
        """The same, where `returned` was fetched after the last pass."""
        return self._read(self._slot.values)

    def _read(self, words: NDArray[np.int64]) -> list[Report]:
        return [_read(row) for row in words.reshape(-1, _FIELDS)[1 : self._begun + 1]]


def _read(fields: Any) -> Report:
    sent, squares, nonfinite, tau = struct.unpack("<qdqq", fields.tobytes())
    return Report(sent, squares, nonfinite > 0, np.uint32(tau).view(np.float32))
