"""ternary: values as -s, 0 and +s, where s is near the mean magnitude of a parameter."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors.method.quantizers import QuantizerLink
from taugrad.compressors.ops.interface import QuantizedPass
from taugrad.compressors.quantizers.base import Given, Quantization, Quantized, Work

BITS = 2
SMALLEST = 2.0**-100
"""A scale below it is taken for 0."""


class Ternary(QuantizerLink):
    """What was selected, as -s, 0 or +s: s is the power of two next to the mean magnitude."""

    makes = "linear"  # messages say it as bins of equal width, with these values in their middle
    quantizes = "taugrad_extension.ternary:Signs"

    kind: Literal["ternary"] = "ternary"

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return float(BITS)


class Signs(Quantization):
    """See `Ternary`."""

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        """See `Quantization.apply`."""
        signs, scales, passed = list[Tensor](), list[float](), list[QuantizedPass]()
        for each in given:
            own, scale, came_to = ternary(each.residual, each.gradient)
            signs.append(own)
            scales.append(scale)
            passed.append(came_to)
        steps = np.array(scales, np.float32)
        symbols = torch.cat(signs) if signs else torch.empty(0, dtype=torch.uint8)
        lows = np.float32(-1.5) * steps + np.float32(0)  # 0.0, not -0.0, which readers refuse
        tables = tuple(work.ops.place_all([lows, steps]))
        return Quantized([BITS] * len(given), work.ops.array(symbols), lambda: passed, 0, tables)


def ternary(residual: Tensor | None, gradient: Tensor) -> tuple[Tensor, float, QuantizedPass]:
    """The symbols of one parameter, uint8, their scale, and what is left in the residual."""
    total = gradient.float() if residual is None else residual + gradient
    finite = total.isfinite()
    kept = torch.where(finite, total, torch.zeros_like(total))
    mean = float(kept.abs().mean(dtype=torch.float64))
    scale = 2.0 ** round(math.log2(mean)) if mean > SMALLEST else 0.0
    signs = (kept / scale).round_().clamp_(-1, 1) if scale else torch.full_like(kept, -1)
    error = kept - scale * signs if scale else kept
    if residual is not None:
        residual.copy_(torch.where(finite, error, residual))
    squares = 0.0 if residual is None else float(residual.double().square().sum())
    return (signs + 1).to(torch.uint8), scale, QuantizedPass(squares, not bool(finite.all()))
