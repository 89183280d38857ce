"""Rules that send every element in fewer bits: linear, quantile, entropy, fp16, bf16, fp8."""

from typing import cast

from ..bucket.layout import Part, PartTally
from ..config.methods import DenseMethod
from ..ops.returns import Returns, Steps, together
from ..quantizers.base import Given, Outcome, Work
from ..tau.base import SAMPLE
from ..tau.by_law import ByLaw, LawMemory
from ..wire.update import NO_TAU, Update
from .base import Context, Ran, Rule, Turn


class DenseRule(Rule):
    """Quantizes residual + gradient of each parameter; the error stays in the residual, if there is one."""

    by_parameter = True

    def __init__(self, config: DenseMethod) -> None:
        self.config = config
        self.form = config.makes
        self.law = None if config.law is None else ByLaw(config.law)

    def run(self, turn: Turn) -> Steps[list[Ran]]:
        """See `Rule.run`."""
        passed_there = Returns(turn.ops)
        outcomes = iter((yield from self._passes(turn, passed_there)))
        passed_there.fetch()
        rans = []
        for unit in turn.units:
            ordinal = unit.places[0].ordinal
            part = turn.parts[ordinal]
            if ordinal not in turn.awake:
                turn.tallies.found[ordinal] = PartTally(part.name, part.elements, 0, 0.0)
                turn.tallies.add_squares(ordinal, turn.ops.squares(part.residual, turn.returned))
                rans.append(Ran(unit, [Update.empty(self.form, unit.n, ops=turn.ops)]))
                continue
            outcome = next(outcomes)
            passed = outcome.passed()
            if passed.nonfinite:
                rans.append(Ran(unit, [], ordinal))
                continue
            update = Update(self.form, unit.n, NO_TAU, None, outcome.values)
            squares, bits = passed.residual_squares, update.paper_bits
            tally = PartTally(part.name, part.elements, unit.n, squares, paper_bits=bits)
            turn.tallies.found[ordinal] = tally
            rans.append(Ran(unit, [update]))
        return rans

    def _passes(self, turn: Turn, returns: Returns) -> Steps[list[Outcome]]:
        """Of each parameter that is not held back."""
        parts = [turn.parts[unit.places[0].ordinal] for unit in turn.units]
        awake = [
            part for part, unit in zip(parts, turn.units, strict=True) if unit.places[0].ordinal in turn.awake
        ]
        work = Work(turn.ops, turn.looks, returns)
        given = [Given(part.residual, part.gradient, part.rms) for part in awake]
        if self.law is None:
            return self.config.apply_all(given, work)
        deciding = [self.decided(sample, turn.context) for sample in self._sampled(awake, turn)]
        return _firsts(
            together(one.apply_all([each], work) for one, each in zip(deciding, given, strict=True))
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


def _firsts(works: Steps[list[list[Outcome]]]) -> Steps[list[Outcome]]:
    return [outcome for (outcome,) in (yield from works)]


def _memory(part: Part, context: Context) -> LawMemory:
    """What the law remembers of a parameter."""
    memory = context.memories.setdefault(part.name, LawMemory())
    assert isinstance(memory, LawMemory)
    return memory
