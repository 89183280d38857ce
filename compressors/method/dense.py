"""The fields of methods that send every element in fewer bits: each is a quantizer of whole parameters."""

from typing import Literal

from pydantic import Field

from .base import Symbols
from .methods import CompressedMethod
from .quantizers import EntropyFields, Float8Fields, Half, LinearFields, QuantileFields, Quantizer


class DenseMethod(CompressedMethod, Quantizer):
    """Every element is sent, in fewer bits: the method is a quantizer, and each parameter is quantized."""

    rule = "taugrad.compressors.rules.dense:DenseRule"


class Linear(DenseMethod, LinearFields):
    """Rae, section 2.3: every element in bins of equal width between its block's extremes."""

    kind: Literal["linear"] = "linear"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""


class Quantile(DenseMethod, QuantileFields):
    """Rae, section 2.3.1: every element in bins of equal population, by their means."""

    kind: Literal["quantile"] = "quantile"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""


class Entropy(DenseMethod, EntropyFields):
    """Oland-Raj, section 4: every element in bins of equal width, as many as the layer's entropy asks for."""

    kind: Literal["entropy"] = "entropy"
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""


class _HalfMethod(DenseMethod, Half):
    decay: float = Field(default=0.0, ge=0, le=1)
    """Factor of the rounding error from one iteration to the next (error feedback): 1 keeps it, 0 drops
    it."""


class Float16(_HalfMethod):
    """Every element as a 16-bit float; as torch's fp16 hook without error feedback, unless decay says so."""

    makes = "fp16"

    kind: Literal["fp16"] = "fp16"


class BFloat16(_HalfMethod):
    """Every element as a bfloat16; as torch's bf16 hook without error feedback, unless decay says so."""

    makes = "bf16"

    kind: Literal["bf16"] = "bf16"


class Float8(DenseMethod, Float8Fields):
    """Every element as an 8-bit float (e4m3), scaled by block."""

    kind: Literal["fp8"] = "fp8"
    symbols: Symbols = "auto"
    """Encoding of the 8-bit floats."""
