"""linear, quantile, fp8, fp16 and bf16: as many bits as the fields say (Rae, section 2.3)."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from ..method.quantizers import Bins, Blocks, Quantizer
from ..ops.interface import HalfFormat
from .base import Given, Quantization, Quantized, Work


class LinearBins(Quantization):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    config: Bins

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        """See `Quantization.apply`."""
        bits, block = self.config.bits, self.config.block
        asked = work.room(given, bits, block)
        lows, steps = (work.ops.empty(asked.offsets.all_blocks, np.float32) for _ in range(2))
        passed = work.ops.linear_pass(asked, lows, steps, work.returned)
        return Quantized([bits] * len(given), asked.symbols, passed, block, (lows, steps))


class QuantileBins(Quantization):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    config: Bins

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        """See `Quantization.apply`."""
        bits, block, ops = self.config.bits, self.config.block, work.ops
        asked = work.room(given, bits, block)
        blocks = asked.offsets.all_blocks
        means, exponents = ops.empty(blocks << bits, np.uint16), ops.empty(blocks, np.int8)
        passed = ops.quantile_pass(asked, means, exponents, work.returned)
        return Quantized([bits] * len(given), asked.symbols, passed, block, (exponents, means))


class Float8(Quantization):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    config: Blocks

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        """See `Quantization.apply`."""
        asked = work.room(given, 8, self.config.block)
        exponents = work.ops.empty(asked.offsets.all_blocks, np.int8)
        passed = work.ops.fp8_pass(asked, exponents, work.returned)
        return Quantized([8] * len(given), asked.symbols, passed, self.config.block, (exponents,))


class Half(Quantization):
    """16-bit floats, of the format that the fields say they make."""

    config: Quantizer

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        """See `Quantization.apply`."""
        asked = work.room(given, 16, 0)
        passed = work.ops.half_pass(cast(HalfFormat, self.config.makes), asked, work.returned)
        return Quantized([16] * len(given), asked.symbols, passed)
