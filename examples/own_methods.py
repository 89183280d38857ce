"""A rule, a quantizer, a threshold policy and a codec of your own (docs/extending.md).

    taugrad train experiments/quickstart/1-none.yaml --extensions own_methods \
        --compressor "rotating(8) | ternary | varint"

In a script of your own, `import own_methods` registers them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from taugrad.compressors import register
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.method.base import SMALLEST_TAU
from taugrad.compressors.method.policies import Policy
from taugrad.compressors.method.quantizers import Quantizer
from taugrad.compressors.method.sparse import WholeValues
from taugrad.compressors.ops.array import Bytes, Words, host
from taugrad.compressors.ops.interface import Batch, Kept, Selected, Target
from taugrad.compressors.ops.readback import Pending
from taugrad.compressors.quantizers.base import Given, Quantization, Quantized
from taugrad.compressors.rules.base import BucketInput, Context
from taugrad.compressors.rules.sparse import SparseRule
from taugrad.compressors.tau.base import PolicyMemory, ThresholdPolicy, as_tau, magnitudes_of
from taugrad.compressors.wire.codec import Codec, Head, Section
from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.update import Update

BITS = 2
SMALLEST = 2.0**-100
"""A scale below it is taken for 0."""
MOST = 5
"""Bytes of a number of varint: a word has 32 bits."""


# A rule


class Stripes(SparseRule):
    """Elements by their place and the iteration, on whatever device they are."""

    sends = "wgt"  # the value itself stands for an element
    has_tau = False
    config: "Rotating"

    def aims(self, parts: Sequence[Part], context: Context, known: Sequence[PolicyMemory]) -> list[float]:
        """The first element of the stripe, for every part."""
        return [float(context.iteration % self.config.stripes)] * len(parts)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        """See `SparseRule.take`."""
        ends, squares, refused, end = list[int](), list[float](), list[bool](), 0
        of_each = zip(batch.pairs(), batch.rows[:, 3].tolist(), aims, strict=True)
        for (residual, gradient), base, first in of_each:
            assert residual is not None
            total = residual + gradient
            finite = total.isfinite()
            residual.copy_(torch.where(finite, total, residual))
            places = np.arange(int(first), residual.numel(), self.config.stripes)
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
        taus = np.full(len(ends), SMALLEST_TAU, np.float32)
        return lambda: Selected(
            np.array(ends, np.int64), np.array(squares), np.array(refused, np.bool_), taus
        )


@register
class Rotating(WholeValues):
    """Every n-th element is sent whole, or quantized; in each iteration those behind the ones before."""

    first_field = "stripes"
    rule = Stripes

    kind: Literal["rotating"] = "rotating"
    stripes: int = Field(default=16, ge=1)
    """n: after so many iterations every element was sent once."""


# A quantizer


class Signs(Quantization):
    """See `Ternary`."""

    def apply(self, given: Given) -> Quantized:
        """See `Quantization.apply`."""
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
    quantizes = Signs

    kind: Literal["ternary"] = "ternary"

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return float(BITS)


# A threshold policy


@dataclass(slots=True)
class MeanMemory(PolicyMemory):
    """Of one parameter."""

    mean: float | None = None


class Mean(ThresholdPolicy[MeanMemory]):
    """See `MeanTau`."""

    memory = MeanMemory
    config: "MeanTau"

    def needs_sample(self, part: Part, iteration: int, memory: MeanMemory) -> bool:
        """See `ThresholdPolicy.needs_sample`: in every iteration."""
        return True

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[MeanMemory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        return [self._tau(part, memory) for part, memory in zip(parts, memories, strict=True)]

    def _tau(self, part: Part, memory: MeanMemory) -> float:
        magnitudes = magnitudes_of(part)
        now = float(magnitudes.mean(dtype=np.float64)) if magnitudes.size else 0.0
        keep = 0.0 if memory.mean is None else self.config.keep
        memory.mean = keep * (memory.mean or 0.0) + (1 - keep) * now
        return as_tau(self.config.factor * memory.mean)


@register
class MeanTau(Policy):
    """A multiple of a sample's mean magnitude; the mean moves slowly."""

    first_field = "factor"
    by_itself = True
    decides = Mean

    kind: Literal["mean"] = "mean"
    factor: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    """tau over the mean magnitude of residual + gradient."""
    keep: float = Field(default=0.9, ge=0, lt=1)
    """How much of the mean stays from one iteration to the next."""


# A codec


@register
class Varint(Codec):
    """One byte for a gap of up to 63 elements, two for up to 8191."""

    name = "varint"
    code = 200

    def measure(self, update: Update, threads: int) -> Section:
        """See `Codec.measure`."""
        words = host(update.words)
        signs = words & 1 if FORMS[update.form].has_tau else 0  # elsewhere the lowest bit means nothing
        section = np.frombuffer(encode(words >> 1 << 1 | signs), np.uint8)

        def write(out: Bytes) -> None:
            out[:] = section

        return Section(section.size, write)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        """See `Codec.read`."""
        words, used = decode(body, head.n, head.k)
        if not head.signed and (words & 1).any():
            raise CorruptMessage("positions have signs where values have them")
        return words, used


def encode(words: NDArray[np.uint32]) -> bytes:
    """The section of ascending words, uint32 [k]."""
    rest = words.astype(np.int64)
    rest[1:] -= rest[:-1].copy()
    columns = np.zeros((words.size, MOST), np.uint8)
    lengths = np.ones(words.size, np.int64)
    for byte in range(MOST):
        more = rest >= 1 << 7
        columns[:, byte] = (rest & 0x7F) | (more << 7)
        lengths += more
        rest >>= 7
    return columns[np.arange(MOST) < lengths[:, None]].tobytes()


def decode(body: NDArray[np.uint8], n: int, k: int) -> tuple[NDArray[np.uint32], int]:
    """The words of a section, and how many bytes it has.

    Args:
        body: uint8, the section and whatever stands behind it.
        n: elements; positions are below.
        k: words.

    Raises:
        CorruptMessage: it is no section that `encode` wrote.
    """
    ends = np.flatnonzero(body[: MOST * k] < 1 << 7)[:k] + 1
    if ends.size < k:
        raise CorruptMessage(f"{body.size} bytes do not hold {k} numbers")
    lengths = np.diff(ends, prepend=0)
    if k and (lengths.max() > MOST or (body[ends - 1][lengths > 1] == 0).any()):
        raise CorruptMessage("a number has more bytes than it needs")
    used = int(ends[-1]) if k else 0
    place = np.arange(used) - np.repeat(ends - lengths, lengths)
    bits = (body[:used].astype(np.int64) & 0x7F) << (7 * place)
    words = np.cumsum(np.add.reduceat(bits, ends - lengths)) if k else np.empty(0, np.int64)
    if k and (words[-1] >= 2 * n or (np.diff(words >> 1) <= 0).any()):
        raise CorruptMessage(f"positions do not ascend, or reach {n}")
    return words.astype(np.uint32), used
