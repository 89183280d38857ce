"""Rules that send every element in fewer bits: linear, quantile, entropy, fp16, bf16, fp8."""

from collections.abc import Sequence
from typing import cast

from ..bucket.layout import Part, PartTally, Unit
from ..config.methods import DenseMethod
from ..ops.array import Array
from ..ops.returns import Returns, Steps, together
from ..quantizers.base import Given, Outcomes, Work, joined
from ..tau.base import SAMPLE
from ..tau.by_law import ByLaw, LawMemory
from ..wire.columns.updates import UpdateColumns
from ..wire.columns.values import SharedValues
from ..wire.quantized import Quantized
from ..wire.update import NO_TAU, Update
from .base import Context, Ran, Rule, Turn


class DenseRule(Rule):
    """Quantizes residual + gradient of each parameter; the error stays in the residual, if there is one."""

    by_parameter = True

    def __init__(self, config: DenseMethod) -> None:
        self.config = config
        self.form = config.makes
        self.law = None if config.law is None else ByLaw(config.law)

    def run(self, turn: Turn) -> Steps[Ran]:
        """See `Rule.run`."""
        passed_there = Returns(turn.ops)
        awake = [unit for unit in turn.units if unit.places[0].ordinal in turn.awake]
        outcomes = yield from self._passes(awake, turn, passed_there)
        passed_there.fetch()
        values, refused = outcomes.values, []
        bits = values.value_bits if isinstance(values, SharedValues) else 0
        for unit, passed in zip(awake, outcomes.passed(), strict=True):
            ordinal, n = unit.places[0].ordinal, unit.n
            squares = passed.residual_squares
            turn.tallies.found[ordinal] = PartTally(turn.parts[ordinal].name, n, n, squares, None, bits * n)
            if passed.nonfinite:
                refused.append(ordinal)
        if isinstance(values, SharedValues) and not refused and len(awake) == len(turn.units):
            return Ran(awake, UpdateColumns(self.form, values.offsets.sizes, None, values))
        return self._one_by_one(values, refused, turn)

    def _one_by_one(self, values: Sequence[Array | Quantized], refused: Sequence[int], turn: Turn) -> Ran:
        """Updates where some parameters are held back or refused, or values do not share arrays."""
        sent = iter(values)
        units, updates = [], []
        for unit in turn.units:
            ordinal = unit.places[0].ordinal
            if ordinal not in turn.awake:
                part = turn.parts[ordinal]
                turn.tallies.found[ordinal] = PartTally(part.name, part.elements, 0, 0.0)
                turn.tallies.add_squares(ordinal, turn.ops.squares(part.residual, turn.returned))
                units.append(unit)
                updates.append(Update.empty(self.form, unit.n, ops=turn.ops))
                continue
            update = Update(self.form, unit.n, NO_TAU, None, next(sent))
            if ordinal not in refused:
                turn.tallies.found[ordinal].paper_bits = update.paper_bits
                units.append(unit)
                updates.append(update)
        return Ran(units, updates, min(refused, default=None))

    def _passes(self, units: Sequence[Unit], turn: Turn, returns: Returns) -> Steps[Outcomes]:
        """Of some units."""
        parts = [turn.parts[unit.places[0].ordinal] for unit in units]
        work = Work(turn.ops, turn.looks, returns)
        given = [Given(part.residual, part.gradient, part.rms) for part in parts]
        if self.law is None:
            return self.config.apply_all(given, work)
        deciding = [self.decided(sample, turn.context) for sample in self._sampled(parts, turn)]
        return joined(
            together(
                one.apply(each.residual, each.gradient, work._replace(rms=each.rms))
                for one, each in zip(deciding, given, strict=True)
            )
        )

    def _sampled(self, parts: list[Part], turn: Turn) -> list[Part]:
        """The parts as `decided` may look at them."""
        if turn.ops.on_host:
            return parts
        wanted = [part for part in parts if self.needs_sample(part, turn.context)]
        taken = turn.ops.samples(
            [part.residual for part in wanted], [part.gradient for part in wanted], SAMPLE
        )
        found = {part.name: Part(part.name, sample) for part, sample in zip(wanted, taken, strict=True)}
        return [found.get(part.name, part) for part in parts]

    def needs_sample(self, part: Part, context: Context) -> bool:
        """Whether `decided` is going to look at the part's magnitudes, at a sample of SAMPLE at most."""
        if self.law is None:
            return False
        return self.law.needs_sample(part, context.iteration, _memory(part, context))

    def decided(self, part: Part, context: Context) -> DenseMethod:
        """The configuration for one parameter, with the law's number where there is a law.

        Args:
            part: the parameter; where `needs_sample` it may be a sample of its magnitudes instead.
            context: as for `run`.
        """
        if self.law is None:
            return self.config
        memory = _memory(part, context)
        self.law.settle((memory,), context.iteration, cast("dict[str, LawMemory]", context.memories))
        said = self.law.said(part, context.iteration, memory)
        return self.config.decided(self.law.law.constant if said is None else said)


def _memory(part: Part, context: Context) -> LawMemory:
    """What the law remembers of a parameter."""
    memory = context.memories.setdefault(part.name, LawMemory())
    assert isinstance(memory, LawMemory)
    return memory
