"""entropy: bins of equal width, as many as a layer's entropy or RMS gradient asks for (Oland-Raj)."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ..config.base import Symbols
from ..config.calls import expand
from ..config.methods import DenseMethod
from ..tau.by_law import Law
from .base import Given, Outcome, Quantizer, QuantizerLink, Work

if TYPE_CHECKING:
    from torch import Tensor

    from ..ops.returns import Steps

LOWEST_FLOOR, HIGHEST_FLOOR = -16.0, 16.0


class LawFloor(Law):
    """Oland-Raj's floor c by a law, at least -16 and at most 16."""


def _kind(value: Any) -> str:
    return "law" if isinstance(value, dict | Law) else "number"


_Number = Annotated[float, Field(ge=LOWEST_FLOOR, le=HIGHEST_FLOOR), Tag("number")]
Floor = Annotated[
    Annotated[_Number | Annotated[LawFloor, Tag("law")], Discriminator(_kind)],
    BeforeValidator(lambda value: expand(value, {"law": LawFloor})),
]
"""A number, or a law."""


class EntropyFields(Quantizer):
    """Oland-Raj, sections 3.2 to 4: bits by layer, from a sample's entropy or the RMS gradient."""

    first_field = "floor"
    makes = "linear"

    form: Literal["entropy", "rms"] = "entropy"
    """b = H + floor with the entropy H (section 3.4), or b = log2(G + c0) + floor (section 3.2)."""
    floor: Floor = 6.0
    """c, or c1 in the RMS form: bits that are always spent; -16 to 16, or law(...)."""
    fraction: float = Field(default=0.03, gt=0, le=1)
    """F: the share of a layer's values from which its entropy is estimated."""
    sample_bits: int = Field(default=4, ge=1, le=12)
    """M: bits to which the sample is quantized."""
    c0: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Keeps the logarithm of the RMS form above zero."""

    @property
    def law(self) -> Law | None:
        """See `Quantizer.law`."""
        return self.floor if isinstance(self.floor, Law) else None

    def decided(self, number: float) -> Self:
        """See `Quantizer.decided`: the floor is the number."""
        return self.model_copy(update={"floor": min(max(number, LOWEST_FLOOR), HIGHEST_FLOOR)})

    @property
    def given_floor(self) -> float:
        """The floor where it is a number; a law has to be asked first."""
        assert not isinstance(self.floor, LawFloor), "a law decides by gradients"
        return self.floor

    def apply(self, residual: "Tensor | None", gradient: "Tensor", work: Work) -> "Steps[Outcome]":
        """Oland-Raj, Algorithm 1: the bits first, then uniform bins over the whole layer."""
        from ..ops.cpu.entropy_bits import bits_of_sample, rms_bits, sample_size  # noqa: PLC0415 (numba)
        from .uniform import quantize_uniformly  # noqa: PLC0415 (NumPy)

        gradient, ops, looks = gradient.float(), work.ops, work.looks
        n = gradient.numel()
        ranges = ops.extremes(residual, gradient, looks, work.returned)
        if self.form == "rms":
            squares = ops.ordered_sum_of_squares(gradient, looks) if work.rms is None else None
            yield
            if ranges.nonfinite:
                return _refused(work)
            found = work.rms if squares is None else math.sqrt(squares() / n)
            assert found is not None
            bits = rms_bits(found, c0=self.c0, c1=self.given_floor)
        else:
            values = gradient if residual is None else residual
            counts = ops.count_sample(values, sample_size(n, self.fraction), self.sample_bits, ranges, looks)
            yield
            if ranges.nonfinite:
                return _refused(work)
            bits = bits_of_sample(counts(), self.given_floor)
        alone = quantize_uniformly([Given(residual, gradient)], bits, 0, work, ranges)
        return Outcome(alone.values[0], lambda: alone.passed()[0])


def _refused(work: Work) -> Outcome:
    from ..ops.results import QuantizedPass  # noqa: PLC0415 (torch)

    return Outcome(work.ops.empty(0, "u2"), lambda: QuantizedPass(0.0, True))


class EntropyLink(EntropyFields, QuantizerLink):
    """What was selected, in as many bins as its entropy asks for."""

    kind: Literal["entropy"] = "entropy"
    floor: float = Field(default=6.0, ge=-16, le=16)
    """c, or c1 in the RMS form: bits that are always spent."""


class Entropy(DenseMethod, EntropyFields):
    """Oland-Raj, section 4: every element in bins of equal width, as many as the layer's entropy asks for."""

    kind: Literal["entropy"] = "entropy"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""
