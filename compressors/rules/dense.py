"""Rules that send every element in fewer bits: linear, quantile, entropy, fp16, bf16, fp8."""

from typing import cast

import numpy as np

from ..bucket.layout import Part, PartTally
from ..method.dense import DenseMethod
from ..ops.readback import Readback
from ..quantizers.base import Given, Work, quantization_of
from ..tau.base import SAMPLE, Memory
from ..tau.by_law import ByLaw, LawMemory
from ..wire.update import Update
from .base import BucketInput, Context, Rule, RuleOutput


class DenseRule(Rule):
    """Quantizes residual + gradient of each parameter; the error stays in the residual, if there is one."""

    def __init__(self, config: DenseMethod) -> None:
        """See `Rule.__init__`."""
        super().__init__(config)
        self.form = config.makes
        self.quantization = quantization_of(config)
        self.law = None if config.law is None else ByLaw(config.law, config)

    def memory_of(self, name: str) -> type[Memory]:
        """See `Rule.memory_of`."""
        return Memory if self.law is None else LawMemory

    def run(self, given: BucketInput) -> RuleOutput:
        """See `Rule.run`."""
        segments, parts, found = given.segments, given.parts, given.tallies.found
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
                given.tallies.add_squares(ordinal, given.ops.squares(part.residual, given.returned))
        values, block, tables = quantized.values, quantized.block, quantized.tables
        update = Update(self.form, segments, None, counts, values, bits=bits, block=block, tables=tables)
        return RuleOutput(update, refused)

    def _numbers(self, own: list[Part], given: BucketInput) -> list[float | None]:
        """What a law says for each parameter."""
        if self.law is None:
            return [None] * len(own)
        looked = own
        if not given.ops.on_host:
            wanted = [part for part in own if self.needs_sample(part, given.context)]
            taken = given.ops.samples(
                [part.residual for part in wanted], [part.gradient for part in wanted], SAMPLE
            )
            samples = {part.name: Part(part.name, each) for part, each in zip(wanted, taken, strict=True)}
            looked = [samples.get(part.name, part) for part in own]
        return [self.said(part, given.context) for part in looked]

    def needs_sample(self, part: Part, context: Context) -> bool:
        """Whether `said` is going to look at the part's magnitudes, at a sample of SAMPLE at most."""
        if self.law is None:
            return False
        return self.law.needs_sample(part, context.iteration, _memory(part, context))

    def said(self, part: Part, context: Context) -> float | None:
        """The law's number for one parameter, where there is a law.

        Args:
            part: the parameter; where `needs_sample` it may be a sample of its magnitudes instead.
            context: as for `run`.
        """
        if self.law is None:
            return None
        memory = _memory(part, context)
        self.law.settle((memory,), context.iteration, cast("dict[str, LawMemory]", context.memories))
        said = self.law.said(part, context.iteration, memory)
        return self.law.config.constant if said is None else said


def _memory(part: Part, context: Context) -> LawMemory:
    """What the law remembers of a parameter."""
    memory = context.memories.setdefault(part.name, LawMemory())
    assert isinstance(memory, LawMemory)
    return memory
