"""Sums of updates that do not depend on the order in which they arrived (Strom, 2.3 to 2.6).

Replicas that do not wait receive the same messages in different orders, and floating-point sums depend on
order. What is sent in whole multiples of tau (bgt, qgt, strom) is therefore added up as integers, for each
sender and amount apart, and multiplied only when weights are wanted, in an order that is always the same.
Such sums are alike in the last bit whatever the order. Other updates, and exempt parameters of any method,
are added up for each sender in the order of its messages: those sums are alike as long as each sender's
messages stay in order, as they do on a connection, however messages of different senders mix.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.bucket.layout import Unit
from taugrad.compressors.wire.forms import Form
from taugrad.compressors.wire.update import Update

WHOLE_MULTIPLES: tuple[Form, ...] = ("bgt", "qgt", "strom")
"""The forms whose values are whole multiples of their tau."""


class Amount(NamedTuple):
    """What an integer of a sum stands for: so many times `tau * factor`."""

    sender: int
    tau: float
    factor: float


class Accumulator:
    """What one replica has received, on top of the weights that all replicas began with.

    It holds 8 bytes per element for the start and for each `Amount` and sender of other values since the last
    `fold`: with K senders, one tau and one rate, 8 n (K + 1).
    A tau that changes each step (a policy) takes another 8 n for each of its values until then.

    Attributes:
        messages: by sender, how many of its messages were added.
    """

    def __init__(self, start: NDArray[np.float32], workers: int) -> None:
        """Begins with nothing received.

        Args:
            start: float32 [n], the same on every replica; copied.
            workers: how many senders there are, this replica's own worker included.
        """
        self._base = start.astype(np.float64)
        self._multiples: dict[Amount, NDArray[np.int64]] = {}
        self._values: dict[int, NDArray[np.float64]] = {}
        self.messages = [0] * workers

    def add(self, sender: int, incoming: Sequence[tuple[Update, Unit]], factor: float) -> None:
        """Adds `factor` times the updates of one message.

        Args:
            sender: whose message it is.
            incoming: as `Compressor.read` gives them.
            factor: what the sender's updates are multiplied by, such as minus its learning rate over K. It
                must be the same number on every replica, and not that of the replica's own present step.

        Raises:
            ValueError: there is no such sender, the factor is not finite, or an update does not fit into n
                elements. Nothing of the message was added.
        """
        if not 0 <= sender < len(self.messages):
            raise ValueError(f"sender {sender}; there are workers 0 to {len(self.messages) - 1}")
        if not np.isfinite(factor):
            raise ValueError(f"factor {factor}; it must be finite")
        for _, unit in incoming:
            last = max([unit.base + unit.n, *(place.start + place.elements for place in unit.places)])
            if last > self._base.size:
                raise ValueError(f"an update up to element {last}, the replica has {self._base.size}")
        factor += 0.0  # -0.0 becomes 0.0: they are one key, and would leave the sign of a zero to order
        for update, unit in incoming:
            if update.form in WHOLE_MULTIPLES:
                self._add_multiples(sender, update, unit, factor)
            else:
                self._add_values(sender, update, unit, factor)
        self.messages[sender] += 1

    def weights(self) -> NDArray[np.float32]:
        """float32 [n]: the start and all that was received."""
        return self._sum().astype(np.float32)

    def fold(self) -> None:
        """Makes all that was received the new start, so that its memory is free again.

        To be called only where all replicas have received the same: they stay alike then.
        """
        self._base = self._sum()
        self._multiples, self._values = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors; live ones, not copies. `fold` comes before it.

        Raises:
            ValueError: something was received since the last `fold`: only a drained replica is saved.
        """
        if self._multiples or self._values:
            raise ValueError("updates were received since the last drain; only drained weights are saved")
        return {"weights": torch.from_numpy(self._base), "messages": list(self.messages)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: it is of another model or of another number of workers.
        """
        base, messages = state["weights"].numpy(), [int(each) for each in state["messages"]]
        if base.shape != self._base.shape or base.dtype != np.float64:
            raise ValueError(f"{base.dtype} weights {base.shape}, this run has float64 {self._base.shape}")
        if len(messages) != len(self.messages):
            raise ValueError(f"messages of {len(messages)} workers, this run has {len(self.messages)}")
        self._base, self.messages = base.copy(), messages
        self._multiples, self._values = {}, {}

    def _add_multiples(self, sender: int, update: Update, unit: Unit, factor: float) -> None:
        assert update.words is not None
        assert isinstance(update.values, np.ndarray)
        amount = Amount(sender, float(update.tau), factor)
        if amount not in self._multiples:
            self._multiples[amount] = np.zeros(self._base.size, np.int64)
        counts: NDArray[np.int64] | np.int64
        counts = update.values.astype(np.int64) if update.form == "qgt" else np.int64(1)
        # Positions ascend and none occurs twice.
        places = (update.words >> 1).astype(np.int64) + unit.base
        self._multiples[amount][places] += np.where(update.words & 1, -counts, counts)

    def _add_values(self, sender: int, update: Update, unit: Unit, factor: float) -> None:
        if sender not in self._values:
            self._values[sender] = np.zeros(self._base.size, np.float64)
        total, amounts = self._values[sender], factor * update.floats().astype(np.float64)
        if update.words is not None:
            total[(update.words >> 1).astype(np.int64) + unit.base] += amounts
            return
        behind = 0
        for place in unit.places:
            total[place.start : place.start + place.elements] += amounts[behind : behind + place.elements]
            behind += place.elements

    def _sum(self) -> NDArray[np.float64]:
        """float64 [n]; senders and amounts ascending, which does not depend on what arrived first."""
        total = self._base.copy()
        for amount in sorted(self._multiples):
            total += (amount.tau * amount.factor) * self._multiples[amount]
        for sender in sorted(self._values):
            total += self._values[sender]
        return total
