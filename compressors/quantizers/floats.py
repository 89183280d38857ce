"""fp8, fp16 and bf16: short floats, 8-bit ones (e4m3) scaled by a power of two for each block."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from ..method.quantizers import Blocks, Quantizer
from ..ops.results import HalfFormat
from .base import Given, Quantization, Quantized, Work


class Float8(Quantization):
    """8-bit floats (e4m3), scaled by block."""

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
