"""qsgd and terngrad: every element as one of a few levels of its block's scale, rounded at random."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ..ops.array import Tensor
from .rows import Rows, Stochastic, bin_width


class _Levels(Stochastic):
    """Levels -s to s, s = 2^(bits - 1) - 1. In the form `linear`, they are the middles of bins."""

    makes = "linear"

    @property
    def levels(self) -> int:
        """s of the papers."""
        return (1 << (int(self.value_bits) - 1)) - 1

    @abstractmethod
    def scale(self, rows: Rows) -> Tensor:
        """What the largest level stands for, float64 [b]."""

    def tables(self, rows: Rows) -> Sequence[Tensor]:
        width = bin_width(self.scale(rows) * (1 / self.levels), int(self.value_bits))
        return 0 - (self.levels + 0.5) * width, width

    def encode(self, rows: Rows, at: slice, *tables: Tensor) -> tuple[Tensor, Tensor]:
        _, width = tables
        places = rows.sums[at] / width.masked_fill(width == 0, float("inf"))
        levels = places.add_(rows.uniform(at)).floor_().clamp_(-self.levels, self.levels)
        return levels + self.levels, levels * width


class QSGD(_Levels):
    """QSGD (Alistarh et al. 2017, arXiv:1610.02132): Q(v) = ||v|| sign(v) xi(v, s).

    |v| / ||v|| is between two of the levels 0, 1/s, ..., 1, and becomes either at random, so that the mean is
    right. Its experiments have blocks (buckets), and the largest magnitude in place of the norm, which has a
    smaller variance. Levels are packed, or Huffman coded where the paper has Elias' codes.
    """

    first_field = "bits"

    kind: Literal["qsgd"] = "qsgd"
    bits: Annotated[int, Field(ge=2, le=8)] = 4
    """Bits of a level with its sign: 2^(bits - 1) - 1 levels above 0."""
    block: Annotated[int, Field(ge=0, le=2**16)] = 512
    """Number of elements that share a scale; 0: the whole layer is one block."""
    norm: Literal["max", "l2"] = "max"
    """The scale: the largest magnitude of a block, or its Euclidean norm."""

    @property
    def value_bits(self) -> float:
        return float(self.bits)

    def scale(self, rows: Rows) -> Tensor:
        if self.norm == "max":
            return rows.largest.double()
        return (rows.means(2) * rows.counts).sqrt()


class TernGrad(_Levels):
    """TernGrad (Wen et al. 2017, arXiv:1705.07878): each element becomes -s, 0 or s at random.

    s is the layer's largest magnitude after clipping. Workers do not share it.
    """

    first_field = "sigmas"

    kind: Literal["terngrad"] = "terngrad"
    sigmas: float = Field(default=2.5, ge=0, allow_inf_nan=False)
    """Magnitudes are clipped to this multiple of the block's root mean square; 0: no clipping."""

    @property
    def value_bits(self) -> float:
        return 2.0

    def scale(self, rows: Rows) -> Tensor:
        largest = rows.largest.double()
        return largest.minimum(self.sigmas * rows.means(2).sqrt()) if self.sigmas else largest
