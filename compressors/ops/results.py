"""The results of passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from .array import Array
from .segments import Offsets

HalfFormat = Literal["fp16", "bf16"]
FP8_EXPONENTS = (-126, 119)
"""The smallest and the largest exponent of a block of 8-bit floats."""
QUANTILE_EXPONENTS = (-128, 113)
"""The same of a block in bins of equal population."""
LARGEST_MEAN = np.int32(0x77FF)
"""The float16 bits of 32752, the largest mean of a bin: times 2^113 it is finite."""


class Target(NamedTuple):
    """Where sparse passes write: what one parameter sends stands behind what the one before has sent."""

    words: Array
    """uint32, position << 1 | sign."""
    values: Array
    """What stands beside a word: float32 (wgt), uint8 levels (qgt), nothing for the others."""


class Batch(NamedTuple):
    """Parameters that sparse passes go over, one after the other."""

    residuals: Sequence[Tensor]
    """float32, contiguous; changed in place."""
    gradients: Sequence[Tensor]
    """Any float."""
    bases: Sequence[int]
    """Each one's first position in its update."""
    target: Target
    """What is sent goes there, each parameter's ascending."""


class Quantizing(NamedTuple):
    """What a quantizing pass over some parameters works on."""

    residuals: Sequence[Tensor | None]
    """float32 [n], become what symbols leave out; None for zeros that nobody keeps."""
    gradients: Sequence[Tensor]
    """[n], any float, contiguous; added to the residuals."""
    symbols: Array
    """Receives the symbols, each parameter's where `offsets` says: uint8 for up to 8 bits, uint16 above."""
    bits: int
    """Of a symbol, 1 to 16."""
    block: int = 0
    """Elements that share tables, a parameter's last ones may be fewer; 0 for one block a parameter."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """n of each parameter."""
        return tuple([each.numel() for each in self.gradients])

    @property
    def offsets(self) -> Offsets:
        """Where symbols and tables stand."""
        return Offsets.of(np.array(self.sizes, np.int64), self.block)


@dataclass(frozen=True)
class Selected:
    """What sparse passes over some parameters came to, by parameter."""

    ends: list[int]
    """Words in the output after each one."""
    residual_squares: list[float]
    """Sums of squares of what was kept. The order of summation is free: a metric, no more."""
    nonfinite: list[bool]
    """Whether a sum of residual and gradient was infinite or no number."""
    taus: list[float]
    """What was sent by, each a float32's value; the smallest tau for chunks, which have none."""


@dataclass(slots=True)
class QuantizedPass:
    """What one quantizing pass over one parameter came to."""

    residual_squares: float
    """Sum of squares of the residual that was kept; 0.0 without one."""
    nonfinite: bool
    """Whether residual + gradient held a NaN or Inf. Then, to rounding, the residual has gained the gradient
    but for elements whose sum is not finite, which kept what they had. Symbols and tables mean nothing."""
