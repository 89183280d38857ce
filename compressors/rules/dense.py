"""Rules that send every element in fewer bits: linear, quantile, entropy, fp16, bf16, fp8."""

from typing import cast

import numpy as np

from ..bucket.layout import Part, PartTally
from ..method.dense import DenseMethod
from ..ops.readback import Readback
from ..quantizers.base import Given, Work, quantization_of
from ..tau.base import Memory, with_magnitudes
from ..tau.by_law import ByLaw, LawMemory
from ..wire.update import Update
from .base import BucketInput, Rule, RuleOutput


class DenseRule(Rule):
    """Quantizes residual + gradient of each parameter; the error stays in the residual, if there is one."""

    def __init__(self, config: DenseMethod) -> None:
        """See `Rule.__init__`."""
        super().__init__(config)
        self.form = config.makes
        self.quantization = quantization_of(config)
        self.law = None if config.law is None else ByLaw(config.law, config)

    def memory_of(self, name: str) -> type[Memory]:
        return Memory if self.law is None else LawMemory

    def run(self, given: BucketInput) -> RuleOutput:
        segments, parts, found = given.segments, given.parts, given.tallies
        active = [i for i, ordinal in enumerate(segments.ordinals) if ordinal in given.active]
        own, passes = [parts[segments.ordinals[i]] for i in active], Readback(given.ops)
        numbers = self._numbers(own, given)
        quantized = self.quantization.apply(
            [
                Given(part.residual, part.gradient, part.rms, number)
                for part, number in zip(own, numbers, strict=True)
            ],
            Work(given.ops, given.readback, passes),
        )
        passes.fetch()
        refused = []
        bits, counts = np.zeros(len(segments), np.int64), np.zeros(len(segments), np.int64)
        bits[active], counts[active] = quantized.bits, segments.sizes[active]
        for i, passed in zip(active, quantized.passed(), strict=True):
            ordinal, n = segments.ordinals[i], int(segments.sizes[i])
            name, squares = parts[ordinal].name, passed.residual_squares
            found[ordinal] = PartTally(name, n, n, squares, None, int(bits[i]) * n)
            if passed.nonfinite:
                refused.append(ordinal)
        for ordinal in segments.ordinals:
            if ordinal not in given.active:
                part = parts[ordinal]
                found[ordinal] = PartTally(part.name, part.elements, 0, 0.0)
                given.squares.append((ordinal, given.ops.squares(part.residual, given.returned)))
        values, block, tables = quantized.values, quantized.block, quantized.tables
        update = Update(self.form, segments, None, counts, values, bits=bits, block=block, tables=tables)
        return RuleOutput(update, refused)

    def _numbers(self, own: list[Part], given: BucketInput) -> list[float | None]:
        """What a law says for each parameter."""
        if self.law is None:
            return [None] * len(own)
        context, iteration = given.context, given.context.iteration
        memories = [context.memories.setdefault(part.name, LawMemory()) for part in own]
        known = [each for each in memories if isinstance(each, LawMemory)]  # all of them
        pairs = list(zip(own, known, strict=True))
        wanted = [self.law.needs_sample(part, iteration, memory) for part, memory in pairs]
        self.law.settle(known, iteration, cast("dict[str, LawMemory]", context.memories))
        looked = with_magnitudes(own, wanted, given.ops)
        told = [self.law.said(part, iteration, memory) for part, memory in zip(looked, known, strict=True)]
        return [self.law.config.constant if each is None else each for each in told]
