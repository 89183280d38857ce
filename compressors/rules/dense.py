"""Rules that send every element in fewer bits: linear, quantile, entropy, fp16, bf16, fp8."""

import numpy as np

from ..method.dense import DenseMethod
from ..ops.interface import Batch
from ..quantizers.base import Given, quantization_of
from ..wire.update import Update
from .base import BucketInput, Rule, RuleOutput


class DenseRule(Rule):
    """Quantizes residual + gradient of each parameter; the error stays in the residual, if there is one."""

    def __init__(self, config: DenseMethod) -> None:
        super().__init__(config)
        self.form = config.makes
        self.quantization = quantization_of(config)

    def run(self, given: BucketInput) -> RuleOutput:
        segments, numbers, tallies = given.segments, given.numbers, given.tallies
        whole, parts = given.batch(), given.parts.of(segments)
        batch, rows = whole.select(numbers), np.arange(numbers.size)
        active = parts if batch is whole else [parts[number] for number in numbers]
        rms = [part.rms for part in active]
        batch = _side_by_side(batch, whole)
        if given.context.readback is not None:
            batch, rows = whole.without_residuals(~given.active[segments.places]), numbers
        quantized = self.quantization.apply(Given(batch, given.ops, given.readback, rms))
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
        update = Update(self.form, segments, None, counts, values, bits=bits, block=block, tables=tables)
        return RuleOutput(update, finish)


def _side_by_side(batch: Batch, whole: Batch) -> Batch:
    """A part of a batch with positions that count only these parameters: what is held back has no symbols."""
    if batch is whole:
        return batch
    rows = batch.rows.copy()
    rows[:, 3] = np.cumsum(batch.sizes) - batch.sizes
    return Batch(rows, batch.residuals, batch.gradients)
