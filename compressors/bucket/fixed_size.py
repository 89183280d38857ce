"""Messages of fixed size, for torch's collectives: they stay on the device of the gradients.

All workers know what stands where in them, so there is no header. There is no checksum either: integrity is
up to the transport of the collectives.
"""

from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops.array import Array, Numbers, torch_type
from ..ops.interface import Form, Offsets, Ops
from ..wire.forms import FORMS, table_layout
from ..wire.update import Segments, Update

_ALIGNMENT = 16
"""Bytes at whose multiples arrays begin: no kernel meets an odd address."""


@dataclass(frozen=True, eq=False)
class FixedSize:
    """The arrays in a message: symbols, their tables, and the parameters that are sent whole."""

    form: Form
    bits: int
    """Bits of a symbol: 1, 2, 4, 8 or 16."""
    block: int
    """Values that share tables; 0: a block for each parameter."""
    sent: Segments
    whole: Segments
    messages: int = 1
    """How many `write` makes at once, for as many receivers."""

    @cached_property
    def _arrays(self) -> list[tuple[Any, int]]:
        """Type and bytes of each."""
        arrays: list[tuple[Any, int]] = []
        if len(self.sent):
            blocks = Offsets.of(self.sent.sizes, self.block).all_blocks
            arrays = [(FORMS[self.form].dtype or np.uint8, -(-self.sent.n * self.bits // 8))]
            arrays += [
                (dtype, dtype.itemsize * n * blocks) for dtype, n in table_layout(self.form, self.bits)
            ]
        if len(self.whole):
            arrays.append((np.float32, 4 * self.whole.n))
        return arrays

    @cached_property
    def _bounds(self) -> list[int]:
        """Where each begins, and the end."""
        return list(accumulate((nbytes + -nbytes % _ALIGNMENT for _, nbytes in self._arrays), initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes of a message."""
        return self._bounds[-1]

    def write(self, updates: list[Update], ops: Ops) -> Array:
        """The message of the updates of all `sent` and of all `whole` parameters; uint8, on their device.

        Or several messages: the updates are then of all `sent` parameters of the first, of the second, ...
        """
        rows = self.messages
        arrays = [
            ops.tensor(array).view(torch.uint8).view(rows, -1)
            for update in updates
            for array in update.arrays()
        ]
        if self.bits < 8 and len(self.sent):
            arrays[0] = _packed(arrays[0], self.bits)
        padding = torch.zeros((rows, _ALIGNMENT), dtype=torch.uint8, device=ops.device)
        pieces = [piece for array in arrays for piece in (array, padding[:, : -array.shape[1] % _ALIGNMENT])]
        return ops.array(torch.cat([padding[:, :0], *pieces], 1).flatten())

    def read(self, message: Array, ops: Ops) -> list[Update]:
        """The updates in a message; they share its memory."""
        whole = ops.tensor(message)
        arrays = [
            ops.array(whole[start : start + nbytes].view(torch_type(dtype)))
            for (dtype, nbytes), start in zip(self._arrays, self._bounds, strict=False)
        ]
        if self.bits < 8 and len(self.sent):
            arrays[0] = ops.array(_unpacked(ops.tensor(arrays[0]), self.bits, self.sent.n))
        updates = []
        if len(self.sent):
            values, *tables = arrays[: 1 + len(table_layout(self.form, self.bits))]
            bits: Numbers = np.full(len(self.sent), self.bits)
            given = self.form, self.sent, None, self.sent.sizes, values, None, bits, self.block, tuple(tables)
            updates.append(Update(*given))
        if len(self.whole):
            updates.append(Update("f32", self.whole, None, self.whole.sizes, arrays[-1]))
        return updates


def _packed(symbols: Tensor, bits: int) -> Tensor:
    """Symbols of 1, 2 or 4 bits, uint8 [messages, n], side by side in bytes; the first in the lowest bits."""
    padded = torch.nn.functional.pad(symbols, (0, -symbols.shape[1] % (8 // bits)))
    columns = [padded[:, place :: 8 // bits] << (bits * place) for place in range(8 // bits)]
    return reduce(torch.bitwise_or, columns)


def _unpacked(packed: Tensor, bits: int, n: int) -> Tensor:
    """The reverse."""
    columns = [(packed >> (bits * place)) & ((1 << bits) - 1) for place in range(8 // bits)]
    return torch.stack(columns, 1).flatten()[:n]
