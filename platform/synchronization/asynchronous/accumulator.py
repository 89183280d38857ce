"""Sums of updates that do not depend on the order in which they arrived (Strom, 2.3 to 2.6).

Replicas that do not wait receive the same messages in different orders, and floating-point sums depend on the
order. Weights are therefore kept as integers, in units of 2^-44. Each amount in a message is rounded to a
whole number of units once, in the same way on every replica. Sums of integers are the same in any order.

A unit is 5.7e-14. This is the spacing of float32 near 1e-6, and a 256th of its spacing near 1e-4. Weights may
be up to 2^18 = 262,144; a weight beyond that is refused, and never wraps around.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.errors import Diverged
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.wire.update import Update

UNIT = 2.0**-44
"""The amount that 1 stands for."""
MOST = 2.0**18
"""The largest weight. Below it two of them, or a weight and an amount, add up without wrapping around."""


class Accumulator:
    """One replica's weights: those that all replicas began with, plus everything received since.

    It takes 12 bytes per element, however many senders and thresholds there are. The time to add a message is
    proportional to its elements.

    Attributes:
        messages: by sender, how many of its messages were added.
    """

    def __init__(self, start: NDArray[np.float32], workers: int) -> None:
        """Begins with nothing received, for so many senders, this replica's own worker included.

        `start`, float32 [n], the same on every replica, is copied and rounded to whole units. Raises
        Diverged: a weight is beyond `MOST`, or is no number.
        """
        self._units = _units(start, 1.0)
        self._weights = _floats(self._units)
        self.messages = [0] * workers

    def add(self, sender: int, incoming: Sequence[Update], factor: float) -> None:
        """Adds `factor` times the updates of one message; none where the sender leaves a step out.

        The factor, such as minus its learning rate over K, must be the same number on every replica, so it is
        the sender's, not the receiver's. Raises Diverged: a weight would be beyond `MOST`; nothing of the
        message was added.
        """
        changes = [change for update in incoming for change in self._changes(update, factor)]
        for where, sums in changes:
            self._units[where] = sums
            self._weights[where] = _floats(sums)
        self.messages[sender] += 1

    def weights(self) -> NDArray[np.float32]:
        """float32 [n]: the weights. Not a copy; do not change it."""
        return self._weights

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors; live ones, not copies."""
        return {"units": torch.from_numpy(self._units), "messages": list(self.messages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, of the same model and number of workers."""
        self._units = state["units"].numpy().copy()
        self.messages = [int(count) for count in state["messages"]]
        self._weights = _floats(self._units)

    def _changes(
        self, update: Update, factor: float
    ) -> list[tuple[slice | NDArray[np.int64], NDArray[np.int64]]]:
        """Which elements an update changes, and to what; no element occurs twice."""
        amounts = _units(update.amounts(CPU), factor)
        return [
            (where, _checked(self._units[where] + amounts[section])) for where, section in update.places()
        ]


def _units(values: NDArray[np.float32], factor: float) -> NDArray[np.int64]:
    """`factor` times values as whole numbers of units."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number is refused
        counts: NDArray[np.float64] = np.multiply(values, factor / UNIT, dtype=np.float64)
        np.rint(counts, out=counts)
    return _checked(counts).astype(np.int64)


def _floats(units: NDArray[np.int64]) -> NDArray[np.float32]:
    return (units * UNIT).astype(np.float32)


def _checked(counts: NDArray[Any]) -> NDArray[Any]:
    # Not `> most`: what is no number is refused too.
    most = MOST / UNIT
    if counts.size and not (counts.max() <= most and counts.min() >= -most):
        raise Diverged(
            f"a weight, or what is added to one, is beyond {MOST:,.0f} or is not a number: "
            "the training diverges"
        )
    return counts
