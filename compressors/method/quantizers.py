"""The fields of quantizers. Each is a link after a sparse rule, and a rule by itself (`dense.py`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

from pydantic import Field

from .base import Form, Settings
from .registry import QUANTIZERS

Bits = Annotated[int, Field(ge=1, le=16)]
FIXED_BITS = "taugrad.compressors.quantizers.base:FixedBits"


class Quantizer(Settings):
    """The fields of a quantizer, `kind` among them."""

    if TYPE_CHECKING:
        kind: str

    needs: ClassVar[Mapping[str, str]] = {"quantizes": "a Quantization"}
    quantizes: ClassVar[str | type]
    """The `quantizers.base.Quantization`, or its address."""
    makes: ClassVar[Form]
    """The form of its values in a message."""
    has_symbols: ClassVar[bool] = True
    """Whether its values are symbols, which a Huffman code may shorten."""

    @property
    def value_bits(self) -> float:
        """Bits of a value, to plan by; exact where a symbol's bits are fixed."""
        return 8.0

    @classmethod
    def problem(cls) -> str:
        forms = get_args(Form)
        if getattr(cls, "makes", None) not in forms:
            return f"{cls.__name__} needs makes, the form of its values: one of {', '.join(forms)}"
        return super().problem()


class Blocks(Quantizer):
    """Quantizes block by block."""

    quantizes = FIXED_BITS

    block: Annotated[int, Field(ge=0, le=2**31 - 1)] = 2048
    """Number of elements that share a range or table; 0: the whole layer is one block."""


class Bins(Blocks):
    """Quantizes to 2^bits bins a block."""

    first_field = "bits"

    bits: Bits = 8
    """Bits per element."""

    @property
    def value_bits(self) -> float:
        return float(self.bits)


class Linear(Bins):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    makes = "linear"

    kind: Literal["linear"] = "linear"


class Quantile(Bins):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    makes = "quantile"

    kind: Literal["quantile"] = "quantile"


class Float8(Blocks):
    """8-bit floats (e4m3), scaled by a power of two for each block."""

    first_field = "block"
    makes = "fp8"

    kind: Literal["fp8"] = "fp8"


class Half(Quantizer):
    """16-bit floats."""

    has_symbols = False
    quantizes = FIXED_BITS

    @property
    def value_bits(self) -> float:
        return 16.0


class Float16(Half):
    """16-bit floats, IEEE 754."""

    makes = "fp16"

    kind: Literal["fp16"] = "fp16"


class BFloat16(Half):
    """bfloat16, with the range of float32."""

    makes = "bf16"

    kind: Literal["bf16"] = "bf16"


class Entropy(Quantizer):
    """Oland-Raj, sections 3.2 to 4: as many bins of equal width as a sample's entropy or its RMS asks for."""

    first_field = "floor"
    makes = "linear"
    quantizes = "taugrad.compressors.quantizers.entropy:EntropyBins"

    kind: Literal["entropy"] = "entropy"
    form: Literal["entropy", "rms"] = "entropy"
    """b = H + floor with the entropy H (section 3.4), or b = log2(G + c0) + floor (section 3.2)."""
    floor: float = Field(default=6.0, ge=-16, le=16)
    """c, or c1 in the RMS form: bits that are always spent; -16 to 16."""
    fraction: float = Field(default=0.03, gt=0, le=1)
    """F: the share of a layer's values from which its entropy is estimated."""
    sample_bits: int = Field(default=4, ge=1, le=12)
    """M: bits to which the sample is quantized."""
    c0: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Keeps the logarithm of the RMS form above zero."""


QUANTIZERS.add_builtin(Linear, Quantile, Entropy, Float16, BFloat16, Float8)
