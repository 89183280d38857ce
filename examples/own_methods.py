"""A method, a quantizer and a threshold policy of your own (docs/extending.md).

    taugrad train experiments/quickstart/1-none.yaml --extensions own_methods \
        --compressor "rotating(8) | ternary"

In a script of your own, `import own_methods` registers them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from taugrad.compressors import register
from taugrad.compressors.methods.base import BucketInput
from taugrad.compressors.methods.dense import DenseSymbols
from taugrad.compressors.methods.quantizers import Quantized, Quantizer, QuantizerInput
from taugrad.compressors.methods.sparse import WholeValues
from taugrad.compressors.ops.interface import SMALLEST_TAU, Batch, Kept, Pending, Selected, Target
from taugrad.compressors.ops.parts import Part
from taugrad.compressors.thresholds.base import Policy, PolicyMemory, Sender
from taugrad.compressors.thresholds.samples import as_tau, magnitudes_of

BITS = 2
SMALLEST = 2.0**-100
"""A scale below it is taken for 0."""


@register
class Rotating(WholeValues):
    """Every n-th element is sent whole, or quantized; in each iteration those behind the ones before."""

    first_field = "stripes"
    has_tau = False

    kind: Literal["rotating"] = "rotating"
    stripes: int = Field(default=16, ge=1)
    """n: every element is sent once in n iterations."""

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], taus: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        """See `SparseMethod.take`."""
        first = given.iteration % self.stripes
        ends, squares, refused, end = list[int](), list[float](), list[bool](), 0
        of_each = zip(batch.pairs(), batch.rows[:, 3].tolist(), strict=True)
        for (residual, gradient), base in of_each:
            assert residual is not None
            total = residual + gradient
            finite = total.isfinite()
            residual.copy_(torch.where(finite, total, residual))
            places = np.arange(first, residual.numel(), self.stripes)
            there = torch.from_numpy(places).to(residual.device)
            begin, end = end, end + places.size
            words, values = target.words[begin:end], target.values[begin:end]
            made = (base + places).astype(np.uint32) << np.uint32(1)
            given.ops.tensor(words).copy_(torch.from_numpy(made))
            given.ops.tensor(values).copy_(residual[there])
            residual[there] = 0
            ends.append(end)
            squares.append(float(residual.double().square().sum()))
            refused.append(not bool(finite.all()))
        none = np.full(len(ends), SMALLEST_TAU, np.float32)
        return lambda: Selected(
            np.array(ends, np.int64), np.array(squares), np.array(refused, np.bool_), none
        )


def ternary(residual: Tensor | None, gradient: Tensor) -> tuple[Tensor, float, float, bool]:
    """Symbols of a parameter, uint8, their scale, the residual's squares, and whether a sum is not finite."""
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
    return (signs + 1).to(torch.uint8), scale, squares, not bool(finite.all())


@register
class Ternary(Quantizer):
    """Values as -s, 0 or +s: s is the power of two next to the mean magnitude."""

    makes = "linear"  # messages say it as bins of equal width, with these values in their middle

    kind: Literal["ternary"] = "ternary"

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return float(BITS)

    def apply(self, given: QuantizerInput) -> Quantized:
        """See `Quantizer.apply`."""
        signs, scales, squares, broken = list[Tensor](), list[float](), list[float](), list[bool]()
        for residual, gradient in given.batch.pairs():
            own, scale, kept, nonfinite = ternary(residual, gradient)
            signs.append(own)
            scales.append(scale)
            squares.append(kept)
            broken.append(nonfinite)
        steps = np.array(scales, np.float32)
        symbols = torch.cat(signs) if signs else torch.empty(0, dtype=torch.uint8)
        lows = np.float32(-1.5) * steps + np.float32(0)  # 0.0, not -0.0, which readers refuse
        tables = tuple(given.ops.place_all([lows, steps]))
        results = Kept(np.array(squares), np.array(broken, np.bool_))
        return Quantized([BITS] * len(scales), given.ops.array(symbols), lambda: results, 0, tables)


@register
class DenseTernary(DenseSymbols, Ternary):
    """Every element as -s, 0 or +s."""


@dataclass(slots=True)
class MeanMemory(PolicyMemory):
    """The memory of one parameter."""

    mean: float | None = None


@register
class MeanTau(Policy):
    """A multiple of a sample's mean magnitude; the mean moves slowly."""

    first_field = "factor"
    by_itself = True
    memory = MeanMemory

    kind: Literal["mean"] = "mean"
    factor: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    """tau over the mean magnitude of residual + gradient."""
    keep: float = Field(default=0.9, ge=0, lt=1)
    """How much of the mean stays from one iteration to the next."""

    def needs_sample(self, part: Part, iteration: int, memory: MeanMemory) -> bool:
        """See `Policy.needs_sample`: in every iteration."""
        return True

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[MeanMemory], method: Sender
    ) -> list[float]:
        """See `Policy.taus`."""
        return [self._tau(part, memory) for part, memory in zip(parts, memories, strict=True)]

    def _tau(self, part: Part, memory: MeanMemory) -> float:
        magnitudes = magnitudes_of(part)
        now = float(magnitudes.mean(dtype=np.float64)) if magnitudes.size else 0.0
        keep = 0.0 if memory.mean is None else self.keep
        memory.mean = keep * (memory.mean or 0.0) + (1 - keep) * now
        return as_tau(self.factor * memory.mean)
