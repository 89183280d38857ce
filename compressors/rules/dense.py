"""Rules that send every element in fewer bits: linear, quantile, entropy, fp16, bf16, fp8."""

from collections.abc import Sequence

from ..bucket.layout import Part, PartTally, Unit
from ..config.law import HIGHEST_FLOOR, LOWEST_FLOOR, LawFloor
from ..config.methods import DenseMethod
from ..tau import ByLaw
from ..wire.update import NO_TAU, Update
from .base import Context, Ran, Rule, held_back, squares
from .quantizing import form_of, quantize


class DenseRule(Rule):
    """Quantizes residual + gradient of one parameter; the error stays in the residual, if there is one."""

    by_parameter = True

    def __init__(self, config: DenseMethod) -> None:
        self.config = config
        self.form = form_of(config)
        floor = getattr(config, "floor", None)
        self.law = ByLaw(floor) if isinstance(floor, LawFloor) else None

    def run(self, unit: Unit, parts: Sequence[Part], context: Context) -> Ran:
        """See `Rule.run`."""
        (place,) = unit.places
        part = parts[place.ordinal]
        gradient = part.gradient.float()
        if held_back(part, context):
            tally = PartTally(part.name, place.elements, 0, squares(part.residual))
            return Ran([Update.empty(self.form, unit.n)], [tally])
        residual = None if part.residual is None else part.residual.numpy()
        config = self.decided(part, context)
        quantized = quantize(config, residual, gradient.numpy(), context.threads, part.rms)
        if quantized.nonfinite:
            tally = PartTally(part.name, place.elements, 0, squares(part.residual))
            return Ran([], [tally], place.ordinal)
        update = Update(self.form, unit.n, NO_TAU, None, quantized.values)
        tally = PartTally(
            part.name, place.elements, unit.n, quantized.residual_squares, paper_bits=update.paper_bits
        )
        return Ran([update], [tally])

    def needs_sample(self, part: Part, context: Context) -> bool:
        """Whether `decided` is going to look at the part's magnitudes, at a sample of SAMPLE at most."""
        if self.law is None:
            return False
        return self.law.needs_sample(part, context.iteration, context.memories.setdefault(part.name, {}))

    def decided(self, part: Part, context: Context) -> DenseMethod:
        """The configuration for one parameter, its floor a number.

        Args:
            part: the parameter; where `needs_sample` it may be a sample of its magnitudes instead.
            context: as for `run`.
        """
        if self.law is None:
            return self.config
        memory = context.memories.setdefault(part.name, {})
        self.law.settle((memory,), context.iteration, context.memories)
        said = self.law.said(part, context.iteration, memory)
        floor = self.law.law.constant if said is None else said
        return self.config.model_copy(update={"floor": min(max(floor, LOWEST_FLOOR), HIGHEST_FLOOR)})
