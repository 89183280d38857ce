"""16-bit arithmetic in the forward and backward pass, and the scale of fp16's losses.

Autocast leaves weights and gradients in float32. In fp16 small gradients would be lost, so that the loss is
multiplied by a power of two, and gradients are divided by it, exactly, before anything else happens to them.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal

import torch

Precision = Literal["fp32", "bf16", "fp16"]
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FIRST: Final = 2.0**16
_LARGEST: Final = 2.0**24
_SMALLEST: Final = 2.0**-14
_PATIENCE: Final = 2000
"""Steps without an overflow after which the scale doubles, as torch's GradScaler has it."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Makes a forward pass compute in a precision."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, _TYPES[precision])


class LossScale:
    """The factor of fp16's losses: halved when a gradient overflows, doubled when none has for long.

    It depends only on which steps were skipped. All workers know this, so their factors stay equal.

    Attributes:
        changes: whether it does: in fp16. A factor of 1 may be one on its way.
        factor: the present one.
    """

    def __init__(self, precision: Precision) -> None:
        """Begins; in other precisions the factor is 1 and stays so."""
        self.changes = precision == "fp16"
        self.factor = _FIRST if self.changes else 1.0
        self._since = 0

    def overflowed(self) -> bool:
        """A step was left out, as a gradient was not finite; whether that may be due to the scale."""
        if not self.changes or self.factor <= _SMALLEST:
            return False
        self.factor /= 2
        self._since = 0
        return True

    def stepped(self) -> None:
        """A step was done."""
        if not self.changes:
            return
        self._since += 1
        if self._since == _PATIENCE:
            self.factor, self._since = min(2 * self.factor, _LARGEST), 0

    def state_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"factor": self.factor, "since": float(self._since)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores what `state_dict` returned."""
        self.factor, self._since = float(state["factor"]), int(state["since"])
