"""entropy: bins of equal width, as many as a layer's entropy or RMS gradient asks for (Oland-Raj)."""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ..method.base import Symbols
from ..method.calls import expand
from ..method.methods import DenseMethod
from ..tau.by_law import Law
from .base import Given, Quantized, Quantizer, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ops.interface import Addends, Ranges

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

    def _floor_of(self, given: Given) -> float:
        """Of a parameter: the law's number for it, or that of all."""
        number = self.floor if given.number is None else given.number
        assert not isinstance(number, LawFloor), "a law decides by gradients"
        return number if given.number is None else min(max(number, LOWEST_FLOOR), HIGHEST_FLOOR)

    def apply(self, given: "Sequence[Given]", work: Work) -> Quantized:
        """Oland-Raj, Algorithm 1: the bits of each layer first, then uniform bins over the whole layer."""
        import numpy as np  # noqa: PLC0415 (reading a configuration needs none of it)

        from ..ops.interface import Addends  # noqa: PLC0415 (torch)

        ops = work.ops
        if not given:
            return Quantized([], ops.empty(0, np.uint8), list)
        gradients = [each.gradient.float() for each in given]
        added = [Addends(each.residual, gradient) for each, gradient in zip(given, gradients, strict=True)]
        ranges = ops.extremes(added, work.readback, work.returned)
        bits_by = self._bits_by_rms if self.form == "rms" else self._bits_by_entropy
        bits = bits_by(given, added, ranges, work)
        asked = work.room(given, max(bits), 0)
        lows, steps = (ops.empty(len(given), np.float32) for _ in range(2))
        passed = ops.linear_between(asked, bits, ranges, lows, steps)
        return Quantized(bits, asked.symbols, passed, 0, (lows, steps))

    def _bits_by_rms(
        self, given: "Sequence[Given]", added: "Sequence[Addends]", ranges: "Sequence[Ranges]", work: Work
    ) -> list[int]:
        """Section 3.2; 1 where a range is not finite."""
        from ..ops.cpu.entropy_bits import rms_bits  # noqa: PLC0415 (numba)

        squares = [
            work.ops.ordered_sum_of_squares(gradient, work.readback) if each.rms is None else None
            for each, (_, gradient) in zip(given, added, strict=True)
        ]
        work.readback.fetch()
        found = [
            (one.rms or 0.0) if total is None else math.sqrt(total() / gradient.numel())
            for one, (_, gradient), total in zip(given, added, squares, strict=True)
        ]
        return [
            1 if own.nonfinite else rms_bits(rms, c0=self.c0, c1=self._floor_of(one))
            for one, rms, own in zip(given, found, ranges, strict=True)
        ]

    def _bits_by_entropy(
        self, given: "Sequence[Given]", added: "Sequence[Addends]", ranges: "Sequence[Ranges]", work: Work
    ) -> list[int]:
        """Section 3.4; 1 where a range is not finite."""
        from ..ops.cpu.entropy_bits import bits_of_sample, sample_size  # noqa: PLC0415 (numba)
        from ..ops.interface import Sample  # noqa: PLC0415 (torch)

        samples = [
            Sample(gradient if residual is None else residual, sample_size(gradient.numel(), self.fraction))
            for residual, gradient in added
        ]
        counts = work.ops.count_samples(samples, self.sample_bits, ranges, work.readback)
        work.readback.fetch()
        return [
            1 if own.nonfinite else bits_of_sample(counted, self._floor_of(one))
            for one, counted, own in zip(given, counts(), ranges, strict=True)
        ]


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
