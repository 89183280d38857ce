"""linear, quantile, fp8, fp16 and bf16: as many bits as the fields say (Rae, section 2.3)."""

from collections.abc import Sequence

from ..method.quantizers import Quantizer
from ..wire.forms import table_layout
from .base import Given, Quantization, Quantized, Work


class FixedBits(Quantization):
    """Symbols of the form that the fields say they make, in their blocks."""

    config: Quantizer

    def apply(self, given: Sequence[Given], work: Work) -> Quantized:
        form, bits, block = self.config.makes, int(self.config.value_bits), getattr(self.config, "block", 0)
        asked, ops = work.room(given, bits, block), work.ops
        blocks = asked.offsets.all_blocks
        tables = tuple(ops.empty(blocks * each, dtype) for dtype, each in table_layout(form, bits))
        passed = ops.quantize(form, asked, tables, work.returned)
        return Quantized([bits] * len(given), asked.symbols, passed, block, tables)
