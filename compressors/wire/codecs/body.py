"""The body of a message that is being read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CorruptMessage
from ...ops.array import Bytes
from ..forms import Form

if TYPE_CHECKING:
    from .values import Symbols


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Head:
    """What a message's header says of its body."""

    form: Form
    n: int
    k: int
    tau: np.float32
    symbols: "Symbols"
    """How symbols stand in the values, where the form has any."""


def need(body: Bytes, size: int, what: str) -> None:
    """Refuses a body that is shorter than a part of it must be."""
    if body.size < size:
        raise CorruptMessage(f"{body.size} bytes cannot hold {what}, which takes {size}")
