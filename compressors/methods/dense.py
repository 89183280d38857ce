"""Methods that send every element in fewer bits: each is a quantizer of whole parameters."""

from __future__ import annotations

from pydantic import Field

from ..lazy import np
from ..ops.interface import Batch, Form
from ..wire.update import Update
from .base import BucketInput, CompressedMethod, RuleOutput, Symbols
from .entropy import Entropy
from .quantizers import BFloat16, Float8, Float16, Linear, Quantile, Quantizer, QuantizerInput


class DenseMethod(CompressedMethod, Quantizer):
    """Every element is sent, in fewer bits: residual + gradient of each parameter is quantized.

    The error stays in the residual, if there is one. A quantizer becomes such a method as one of its bases.
    """

    @property
    def message_form(self) -> Form:
        return self.makes

    @property
    def has_fixed_size(self) -> bool:
        widths = (1, 2, 4, 8) if self.has_symbols else (16,)
        fixed = self.bits_are_fixed and self.value_bits in widths
        return fixed and self.symbol_codec != "huffman"

    def run(self, given: BucketInput) -> RuleOutput:
        segments, numbers, tallies = given.segments, given.numbers, given.tallies
        whole, parts = given.batch(), given.parts
        batch, rows = whole.select(numbers), np.arange(numbers.size)
        active = parts if batch is whole else [parts[number] for number in numbers]
        if batch is not whole:  # positions count these parameters alone: what is held back has no symbols
            batch = Batch.of(batch.residuals, batch.gradients, batch.sizes)
        if given.has_fixed_size:
            batch, rows, active = whole.without_residuals(~given.active[segments.places]), numbers, parts
        drawn = given.iteration, given.stream
        quantized = self.apply(QuantizerInput(batch, given.ops, given.readback, active, *drawn))
        bits, counts = np.zeros(len(segments), np.int64), np.zeros(len(segments), np.int64)
        bits[numbers], counts[numbers] = np.array(quantized.bits, np.int64)[rows], segments.sizes[numbers]
        ordinals = segments.places
        tallies.sent[ordinals], tallies.paper_bits[ordinals] = counts, bits * counts
        held_back = given.squares_of(given.held_back)

        def finish() -> list[int]:
            held_back()
            passed = quantized.passed()
            tallies.residual_squares[ordinals[numbers]] = passed.residual_squares[rows]
            refused: list[int] = ordinals[numbers[passed.nonfinite[rows]]].tolist()
            return refused

        values, block, tables = quantized.values, quantized.block, quantized.tables
        update = Update(self.makes, segments, None, counts, values, bits=bits, block=block, tables=tables)
        return RuleOutput(update, finish)


class DenseSymbols(DenseMethod):
    """Every element as a symbol."""

    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""


class DenseFloats(DenseMethod):
    """Every element as a shorter float."""

    decay: float = Field(default=0.0, ge=0, le=1)
    """Factor of the rounding error from one iteration to the next (error feedback): 1 keeps it, 0 drops
    it."""


class DenseLinear(DenseSymbols, Linear):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""


class DenseQuantile(DenseSymbols, Quantile):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""


class DenseEntropy(DenseSymbols, Entropy):
    """Oland-Raj, sections 3.2 to 4: as many bins of equal width as a sample's entropy or its RMS asks for."""


class DenseFloat16(DenseFloats, Float16):
    """16-bit floats, IEEE 754."""


class DenseBFloat16(DenseFloats, BFloat16):
    """bfloat16, with the range of float32."""


class DenseFloat8(DenseSymbols, Float8):
    """8-bit floats (e4m3), scaled by a power of two for each block."""
