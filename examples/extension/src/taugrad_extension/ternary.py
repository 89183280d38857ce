"""ternary: values as -s, 0 and +s, where s is near the mean magnitude of a parameter."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors.ops.results import QuantizedPass
from taugrad.compressors.ops.returns import Steps, at_once
from taugrad.compressors.quantizers.base import Outcome, QuantizerLink, Work
from taugrad.compressors.wire.quantized import Uniform

BITS = 2
SMALLEST = 2.0**-100
"""A scale below it is taken for 0."""


class Ternary(QuantizerLink):
    """What was selected, as -s, 0 or +s: s is the power of two next to the mean magnitude."""

    makes = "linear"  # messages say it as bins of equal width, with these values in their middle

    kind: Literal["ternary"] = "ternary"

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return float(BITS)

    def apply(self, residual: Tensor | None, gradient: Tensor, work: Work) -> Steps[Outcome]:
        """See `Quantizer.apply`."""
        total = gradient.float() if residual is None else residual + gradient
        finite = total.isfinite()
        kept = torch.where(finite, total, torch.zeros_like(total))
        mean = float(kept.abs().mean(dtype=torch.float64))
        scale = 2.0 ** round(math.log2(mean)) if mean > SMALLEST else 0.0
        signs = (kept / scale).round_().clamp_(-1, 1) if scale else torch.full_like(kept, -1)
        error = kept - scale * signs if scale else kept
        if residual is not None:
            residual.copy_(torch.where(finite, error, residual))
        ops = work.ops
        symbols = ops.array((signs + 1).to(torch.uint8))
        low, step = np.array([-1.5 * scale], np.float32), np.array([scale], np.float32)
        values = Uniform(BITS, 0, symbols, *ops.place_all([low, step]))
        squares = 0.0 if residual is None else float(residual.double().square().sum())
        passed = QuantizedPass(squares, not bool(finite.all()))
        return at_once(Outcome(values, lambda: passed))
