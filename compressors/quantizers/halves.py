"""fp16 and bf16: 16-bit floats."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..method.methods import DenseMethod
from .base import Given, Quantized, Quantizer, QuantizerLink, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ops.results import HalfFormat


class _Half(Quantizer):
    makes: ClassVar["HalfFormat"]
    has_symbols = False

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return 16.0

    def apply(self, given: "Sequence[Given]", work: Work) -> Quantized:
        """See `Quantizer.apply`."""
        asked = work.room(given, 16, 0)
        passed = work.ops.half_pass(self.makes, asked, work.returned)
        return Quantized([16] * len(given), asked.symbols, passed)


class _HalfMethod(DenseMethod, _Half):
    decay: float = Field(default=0.0, ge=0, le=1)
    """Factor of the rounding error from one iteration to the next (error feedback): 1 keeps it, 0 drops
    it."""


class Float16Link(_Half, QuantizerLink):
    """Sends the selected values as 16-bit floats."""

    makes = "fp16"

    kind: Literal["fp16"] = "fp16"


class BFloat16Link(_Half, QuantizerLink):
    """Sends the selected values as bfloat16, with the range of float32."""

    makes = "bf16"

    kind: Literal["bf16"] = "bf16"


class Float16(_HalfMethod):
    """Every element as a 16-bit float; as torch's fp16 hook without error feedback, unless decay says so."""

    makes = "fp16"

    kind: Literal["fp16"] = "fp16"


class BFloat16(_HalfMethod):
    """Every element as a bfloat16; as torch's bf16 hook without error feedback, unless decay says so."""

    makes = "bf16"

    kind: Literal["bf16"] = "bf16"
