"""entropy: bins of equal width, as many as a layer's entropy or RMS gradient asks for (Oland-Raj)."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ..config.base import Symbols
from ..config.calls import expand
from ..config.methods import DenseMethod
from ..tau.by_law import Law
from .base import Given, Outcome, Outcomes, Quantizer, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..ops.interface import Ranges
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
        """See `Quantizer.apply`."""
        outcomes = yield from self.apply_all([Given(residual, gradient, work.rms)], work)
        return Outcome(outcomes.values[0], lambda: outcomes.passed()[0])

    def apply_all(self, given: "Sequence[Given]", work: Work) -> "Steps[Outcomes]":
        """Oland-Raj, Algorithm 1: the bits of each layer first, then uniform bins over the whole layer."""
        from ..ops.cpu.entropy_bits import bits_of_sample, rms_bits, sample_size  # noqa: PLC0415 (numba)
        from ..ops.interface import Addends, Sample  # noqa: PLC0415 (torch)

        if not given:
            return Outcomes([], list)
        ops, looks = work.ops, work.looks
        gradients = [each.gradient.float() for each in given]
        added = [Addends(each.residual, gradient) for each, gradient in zip(given, gradients, strict=True)]
        ranges = ops.extremes(added, looks, work.returned)
        n = [each.numel() for each in gradients]
        if self.form == "rms":
            squares = [
                ops.ordered_sum_of_squares(gradient, looks) if each.rms is None else None
                for each, gradient in zip(given, gradients, strict=True)
            ]
            yield
            found = [
                math.sqrt(each() / size) if each is not None else one.rms or 0.0
                for one, each, size in zip(given, squares, n, strict=True)
            ]
            finite = [not each.nonfinite for each in ranges]
            bits = [
                rms_bits(rms, c0=self.c0, c1=self.given_floor) if good else 0
                for rms, good in zip(found, finite, strict=True)
            ]
        else:
            samples = [
                Sample(gradient if residual is None else residual, sample_size(size, self.fraction))
                for (residual, gradient), size in zip(added, n, strict=True)
            ]
            counts = ops.count_samples(samples, self.sample_bits, ranges, looks)
            yield
            bits = [
                0 if each.nonfinite else bits_of_sample(own, self.given_floor)
                for each, own in zip(ranges, counts(), strict=True)
            ]
        return _by_bits(given, bits, ranges, work)


def _by_bits(
    given: "Sequence[Given]", bits: "Sequence[int]", ranges: "Sequence[Ranges]", work: Work
) -> Outcomes:
    """Quantizes parameters, all of the same bits at once; those of 0 bits are not finite."""
    from ..ops.results import QuantizedPass  # noqa: PLC0415 (torch)
    from .uniform import quantize_uniformly  # noqa: PLC0415 (NumPy)

    found: dict[int, tuple[Outcomes, int]] = {}
    for each in sorted({*bits} - {0}):
        mine = [number for number, own in enumerate(bits) if own == each]
        outcomes = quantize_uniformly(
            [given[number] for number in mine], each, 0, work, [ranges[number] for number in mine]
        )
        if len(mine) == len(given):
            return outcomes
        found |= {number: (outcomes, place) for place, number in enumerate(mine)}
    none, refused = work.ops.empty(0, "u2"), QuantizedPass(0.0, True)
    values = [found[i][0].values[found[i][1]] if i in found else none for i in range(len(given))]

    def passed() -> list[QuantizedPass]:
        all_passed = {id(outcomes): outcomes.passed() for outcomes, _ in found.values()}
        return [
            all_passed[id(found[i][0])][found[i][1]] if i in found else refused for i in range(len(given))
        ]

    return Outcomes(values, passed)


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
