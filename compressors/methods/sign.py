"""sign: one bit for every element, and the mean magnitude of its block (EF-SignSGD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..ops.array import Tensor
from .rows import RowMethod, Rows, bin_width


class Sign(RowMethod):
    """EF-SignSGD (Karimireddy et al. 2019, arXiv:1901.09847): signs, scaled by mean magnitudes.

    p = gradient + residual is sent as (||p||_1 / d) sign(p), d being the elements of its block; the rest is
    the residual. Zeros have a sign, too, so that a bit is enough. As an update of form `linear` it has
    two bins, whose middles are -s and +s.
    """

    first_field = "block"
    makes = "linear"

    kind: Literal["sign"] = "sign"
    scale: Literal["mean", "one"] = "mean"
    """What a sign stands for: the mean magnitude of its block, or 1. `sign(scale='one', decay=0)` with the
    pattern sharded is signSGD with majority vote (Bernstein et al. 2018, arXiv:1810.05291): the sign of a
    shard's sum is what most workers voted for, and all step by the learning rate."""

    @property
    def value_bits(self) -> float:
        return 1.0

    def tables(self, rows: Rows) -> Sequence[Tensor]:
        magnitudes = rows.means(1) if self.scale == "mean" else rows.largest.sign().double()
        width = bin_width(2 * magnitudes, 1)
        return 0 - width, width

    def encode(self, rows: Rows, at: slice, *tables: Tensor) -> tuple[Tensor, Tensor]:
        sums, (_, width) = rows.sums[at], tables
        return ~sums.signbit(), (width * 0.5).copysign(sums)
