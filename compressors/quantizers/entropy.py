"""entropy: bins of equal width, their number by a layer's entropy or RMS gradient (Oland-Raj)."""

import numpy as np

from ..method.quantizers import Entropy
from ..ops.cpu.by_range import count_symbols
from ..ops.cpu.entropy_bits import bits_of_sample, rms_bits, sample_size
from ..ops.interface import Batch, Extremes, Kept
from ..ops.readback import Pending
from .base import Given, Quantization, Quantized


class EntropyBins(Quantization):
    """Oland-Raj, sections 3.2 to 4: bits by layer, from a sample's entropy or the RMS gradient."""

    config: Entropy

    def apply(self, given: Given) -> Quantized:
        """Oland-Raj, Algorithm 1: the bits of a layer first, then uniform bins over the layer."""
        ops = given.ops
        if not len(given.batch):
            return Quantized([], ops.empty(0, np.uint8), lambda: Kept(np.empty(0), np.empty(0, np.bool_)))
        ranges, pending = ops.extremes(given.batch, given.readback)
        bits = (self._bits_by_rms if self.config.form == "rms" else self._bits_by_entropy)(given, pending)
        work = given.room("linear", max(bits), 0)
        return Quantized(bits, work.symbols, ops.linear_between(work, bits, ranges), 0, work.tables)

    def _bits_by_rms(self, given: Given, ranges: Pending[Extremes]) -> list[int]:
        """Section 3.2; 1 where a range is not finite."""
        rms = list(given.rms or [None] * len(given.batch))
        squares = None if None not in rms else given.ops.exact_squares(given.batch, given.readback)
        given.readback.fetch()
        if squares is not None:
            with np.errstate(invalid="ignore"):  # of what is not finite
                measured = np.sqrt(squares() / given.batch.sizes).tolist()
            rms = [both[0] if both[1] is None else both[1] for both in zip(measured, rms, strict=True)]
        return [
            1 if broken else rms_bits(value or 0.0, c0=self.config.c0, c1=self.config.floor)
            for value, broken in zip(rms, ranges().nonfinite.tolist(), strict=True)
        ]

    def _bits_by_entropy(self, given: Given, ranges: Pending[Extremes]) -> list[int]:
        """Section 3.4; 1 where a range is not finite."""
        bits, batch = self.config.sample_bits, given.batch
        sizes = [sample_size(n, self.config.fraction) for n in batch.sizes.tolist()]
        sums = [gradient if residual is None else residual for residual, gradient in batch.pairs()]
        samples = given.ops.samples(Batch.of([None] * len(sums), sums), sizes, given.readback)
        given.readback.fetch()
        return [
            1 if broken else bits_of_sample(count_symbols(values, bits, low, high), self.config.floor)
            for values, low, high, broken in zip(samples(), *ranges(), strict=True)
        ]
