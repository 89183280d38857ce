"""The fields of quantizers, and of the links that put them behind a sparse rule."""

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag

from .base import Form, Settings
from .calls import expand
from .policies import Law

Bits = Annotated[int, Field(ge=1, le=16)]

Block = Annotated[int, Field(ge=0, le=2**31 - 1)]

LOWEST_FLOOR, HIGHEST_FLOOR = -16.0, 16.0


class Quantizer(Settings):
    """The fields of a quantizer, which a link and a method have in common."""

    quantizes: ClassVar[str]
    """Address of the `quantizers.base.Quantization` at work."""

    makes: ClassVar[Form]
    """The form of its values in a message."""
    has_symbols: ClassVar[bool] = True
    """Whether that are symbols, which a Huffman code may shorten."""

    @property
    def value_bits(self) -> float:
        """About what a value takes, to plan by; exactly, where a symbol's bits are fixed."""
        return 8.0

    @property
    def law(self) -> Law | None:
        """The law that decides something for each parameter, if one does."""
        return None

    @classmethod
    def problem(cls, name: str) -> str:
        forms = get_args(Form)
        wanted = f"{cls.__name__} needs makes, the form of its values: one of {', '.join(forms)}"
        return super().problem(name) or ("" if getattr(cls, "makes", None) in forms else wanted)


class QuantizerLink(Quantizer):
    """A quantizer behind a sparse rule: what was selected is quantized; `kind` is among its fields."""

    kind: str


class Blocks(Settings):
    """Values that are quantized block by block."""

    block: Block = 2048
    """Number of elements that share a range or table; 0: the whole layer is one block."""


class Bins(Blocks, Quantizer):
    """Values in 2^bits bins a block."""

    first_field = "bits"
    quantizes = "taugrad.compressors.quantizers.base:FixedBits"

    bits: Bits = 8
    """Bits per element."""

    @property
    def value_bits(self) -> float:
        return float(self.bits)


class LinearFields(Bins):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    makes = "linear"


class LinearLink(LinearFields, QuantizerLink):
    """Quantizes the selected values to bins of equal width."""

    kind: Literal["linear"] = "linear"


class QuantileFields(Bins):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    makes = "quantile"


class QuantileLink(QuantileFields, QuantizerLink):
    """Quantizes the selected values to bins of equal population."""

    kind: Literal["quantile"] = "quantile"


class Float8Fields(Blocks, Quantizer):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    first_field = "block"
    makes = "fp8"
    quantizes = "taugrad.compressors.quantizers.base:FixedBits"


class Float8Link(Float8Fields, QuantizerLink):
    """Sends the selected values as 8-bit floats, scaled by block."""

    kind: Literal["fp8"] = "fp8"


class Half(Quantizer):
    """16-bit floats."""

    has_symbols = False
    quantizes = "taugrad.compressors.quantizers.base:FixedBits"

    @property
    def value_bits(self) -> float:
        return 16.0


class Float16Link(Half, QuantizerLink):
    """Sends the selected values as 16-bit floats."""

    makes = "fp16"

    kind: Literal["fp16"] = "fp16"


class BFloat16Link(Half, QuantizerLink):
    """Sends the selected values as bfloat16, with the range of float32."""

    makes = "bf16"

    kind: Literal["bf16"] = "bf16"


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
    quantizes = "taugrad.compressors.quantizers.entropy:EntropyBins"

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
        return self.floor if isinstance(self.floor, Law) else None


class EntropyLink(EntropyFields, QuantizerLink):
    """What was selected, in as many bins as its entropy asks for."""

    kind: Literal["entropy"] = "entropy"
    floor: float = Field(default=6.0, ge=-16, le=16)
    """c, or c1 in the RMS form: bits that are always spent."""
