"""Memory that passes write to, kept from bucket to bucket."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..results import Target, ThresholdRule
from .threshold import SPARE, VALUE_DTYPE, WITHOUT_VALUES


class Room:
    """As long as the largest bucket, but a page of it takes up memory only once it was written to."""

    def __init__(self) -> None:
        """None so far."""
        self._words = np.empty(0, np.uint32)
        self._values: NDArray[Any] = np.empty(0, np.uint8)
        self._velocities = np.empty(0, np.float32)

    def target(self, elements: int, rule: ThresholdRule) -> Target:
        """Words and values for passes over so many elements."""
        need, dtype = elements + SPARE, VALUE_DTYPE[rule]
        if self._words.size < need:
            self._words = np.empty(need, np.uint32)
        if rule in WITHOUT_VALUES:
            return Target(self._words, _NO_VALUES)
        if self._values.size < need or self._values.dtype != dtype:
            self._values = np.empty(need, dtype)
        return Target(self._words, self._values)

    def velocities(self, elements: int) -> NDArray[np.float32]:
        """float32 [elements]."""
        if self._velocities.size < elements:
            self._velocities = np.empty(elements, np.float32)
        return self._velocities[:elements]


_NO_VALUES = np.empty(1, np.uint8)
