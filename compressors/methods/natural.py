"""natural: every element as a power of two, rounded at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..lazy import torch
from ..ops.array import Tensor
from ..ops.interface import FP8_EXPONENTS
from .rows import Rows, Stochastic

_LOWEST, _HIGHEST = -9, 8
"""Exponents of the powers of two among 8-bit floats."""


class Natural(Stochastic):
    """Natural compression (Horvath et al. 2019, arXiv:1905.10988): elements become powers of 2.

    It is one of both next to it, at random, so that the mean is right: 2.5 becomes 4 with probability 1/4.
    The paper sends a sign and 8 bits of exponent. Here they are 8-bit floats (form `fp8`): 18 powers from a
    block's largest one downwards. What is below these becomes the least of them, or 0.
    """

    first_field = "block"
    makes = "fp8"

    kind: Literal["natural"] = "natural"

    def tables(self, rows: Rows) -> Sequence[Tensor]:
        exponents = torch.frexp(rows.largest).exponent - _HIGHEST
        return (exponents.clamp_(*FP8_EXPONENTS).masked_fill_(rows.largest == 0, 0).to(torch.int8),)

    def encode(self, rows: Rows, at: slice, *tables: Tensor) -> tuple[Tensor, Tensor]:
        exponents, sums = tables[0].int(), rows.sums[at]
        scaled = sums.abs() * _power(-exponents)
        scaled.masked_fill_(rows.largest[rows.owners[at], None] == 0, 0)
        bits = scaled.view(torch.int32)
        power, fraction = (bits >> 23) - 127, (bits & 0x7FFFFF).float() * 2.0**-23
        below = power < _LOWEST
        up = rows.uniform(at) < torch.where(below, scaled * 2.0**-_LOWEST, fraction)
        power = torch.where(below, _LOWEST, power + up).clamp_(max=_HIGHEST)
        values = (_power(power) * _power(exponents)).copysign(sums).masked_fill_(below & ~up, 0)
        codes = torch.where(power < -6, 1 << (power - _LOWEST).clamp_(max=2), (power + 7) << 3)
        return (codes + 0x80 * sums.signbit()).masked_fill_(below & ~up, 0), values


def _power(exponents: Tensor) -> Tensor:
    """2^e, float32."""
    return ((exponents + 127) << 23).view(torch.float32)
