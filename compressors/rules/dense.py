"""Rules that send every element in fewer bits: linear, quantile, entropy, fp16, bf16, fp8."""

from collections.abc import Sequence

from ..config.methods import DenseMethod
from ..parts import Part, PartTally, Unit
from ..quantizing import form_of, quantize
from ..update import NO_TAU, Update
from .base import Context, Ran, Rule, held_back, squares


class DenseRule(Rule):
    """Quantizes residual + gradient of one parameter; the error stays in the residual, if there is one."""

    by_parameter = True

    def __init__(self, config: DenseMethod) -> None:
        self.config = config
        self.form = form_of(config)

    def run(self, unit: Unit, parts: Sequence[Part], context: Context) -> Ran:
        """See `Rule.run`."""
        (place,) = unit.places
        part = parts[place.ordinal]
        gradient = part.gradient.float()
        if held_back(part, context):
            tally = PartTally(part.name, place.elements, 0, squares(part.residual))
            return Ran([Update.empty(self.form, unit.n)], [tally])
        residual = None if part.residual is None else part.residual.numpy()
        quantized = quantize(self.config, residual, gradient.numpy(), context.threads, part.rms)
        if quantized.nonfinite:
            tally = PartTally(part.name, place.elements, 0, squares(part.residual))
            return Ran([], [tally], place.ordinal)
        update = Update(self.form, unit.n, NO_TAU, None, quantized.values)
        tally = PartTally(
            part.name, place.elements, unit.n, quantized.residual_squares, paper_bits=update.paper_bits
        )
        return Ran([update], [tally])
