"""entropy: bins of equal width, as many as a layer's entropy or RMS gradient asks for (Oland-Raj)."""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ..method.quantizers import HIGHEST_FLOOR, LOWEST_FLOOR, Entropy
from ..ops.cpu.by_range import count_symbols
from ..ops.cpu.entropy_bits import bits_of_sample, rms_bits, sample_size
from ..ops.interface import Ranges
from .base import Given, Quantization, Quantized, Work


class EntropyBins(Quantization):
    """Oland-Raj, sections 3.2 to 4: bits by layer, from a sample's entropy or the RMS gradient."""

    config: Entropy

    def _floor_of(self, given: Given) -> float:
        """Of a parameter: the law's number for it, or that of all."""
        if given.number is None:
            return self.config.floor
        return min(max(given.number, LOWEST_FLOOR), HIGHEST_FLOOR)

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        """Oland-Raj, Algorithm 1: the bits of each layer first, then uniform bins over the whole layer."""
        ops = work.ops
        if not given:
            return Quantized([], ops.empty(0, np.uint8), list)
        gradients = [each.gradient.float() for each in given]
        added = [(each.residual, gradient) for each, gradient in zip(given, gradients, strict=True)]
        ranges = ops.extremes(added, work.readback, work.returned)
        bits_by = self._bits_by_rms if self.config.form == "rms" else self._bits_by_entropy
        bits = bits_by(given, added, ranges, work)
        asked = work.room(given, max(bits), 0)
        lows, steps = (ops.empty(len(given), np.float32) for _ in range(2))
        passed = ops.linear_between(asked, bits, ranges, lows, steps)
        return Quantized(bits, asked.symbols, passed, 0, (lows, steps))

    def _bits_by_rms(
        self,
        given: Sequence[Given],
        added: Sequence[tuple[Tensor | None, Tensor]],
        ranges: Sequence[Ranges],
        work: Work,
    ) -> list[int]:
        """Section 3.2; 1 where a range is not finite."""
        squares = [
            work.ops.exact_sum_of_squares(gradient, work.readback) if each.rms is None else None
            for each, (_, gradient) in zip(given, added, strict=True)
        ]
        work.readback.fetch()
        bits = []
        for one, (_, gradient), total, own in zip(given, added, squares, ranges, strict=True):
            if own.nonfinite:
                bits.append(1)
                continue
            rms = (one.rms or 0.0) if total is None else math.sqrt(total() / gradient.numel())
            bits.append(rms_bits(rms, c0=self.config.c0, c1=self._floor_of(one)))
        return bits

    def _bits_by_entropy(
        self,
        given: Sequence[Given],
        added: Sequence[tuple[Tensor | None, Tensor]],
        ranges: Sequence[Ranges],
        work: Work,
    ) -> list[int]:
        """Section 3.4; 1 where a range is not finite."""
        fraction, bits = self.config.fraction, self.config.sample_bits
        summed = [(None, gradient if residual is None else residual) for residual, gradient in added]
        sizes = [sample_size(each.numel(), fraction) for _, each in summed]
        samples = work.ops.samples(summed, sizes, work.readback)
        work.readback.fetch()
        return [
            1
            if own.nonfinite
            else bits_of_sample(count_symbols(values, bits, own.low, own.high), self._floor_of(one))
            for one, values, own in zip(given, samples(), ranges, strict=True)
        ]
