"""Quantizers: as methods of their own for whole layers, and as links behind a sparse rule."""

import ast
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .base import Settings
from .calls import parse_expression, read_call
from .law import Floor, LawFloor

Bits = Annotated[int, Field(ge=1, le=16)]
Block = Annotated[int, Field(ge=0, le=2**31 - 1)]


class _Blocks(Settings):
    block: Block = 2048
    """Elements that share a range or table; 0 takes the whole layer as one block."""


class LinearFields(_Blocks):
    """Rae, section 2.3: bins of equal width between a block's smallest and largest value."""

    bits: Bits = 8
    """Bits of a bin's number."""


class QuantileFields(_Blocks):
    """Rae, section 2.3.1: bins of equal population, each standing for the mean of its values."""

    bits: Bits = 8
    """Bits of a bin's number."""


class EntropyFields(Settings):
    """Oland-Raj, sections 3.2 to 4: bits by layer, from a sample's entropy or the RMS gradient."""

    form: Literal["entropy", "rms"] = "entropy"
    """b = H + floor with the entropy H (section 3.4), or b = log2(G + c0) + floor (section 3.2)."""
    floor: Floor = 6.0
    """c, or c1 in the RMS form: bits that are always spent; -16 to 16, or law(...)."""
    fraction: float = Field(default=0.03, gt=0, le=1)
    """F: the share of a layer's values that its entropy is estimated from."""
    sample_bits: int = Field(default=4, ge=1, le=12)
    """M: bits that the sample is quantized to."""
    c0: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Keeps the logarithm of the RMS form from falling below zero."""

    @property
    def given_floor(self) -> float:
        """The floor where it is a number; a law has to be asked first."""
        assert not isinstance(self.floor, LawFloor), "a law decides by gradients"
        return self.floor


class Float8Fields(_Blocks):
    """8-bit floats (e4m3), scaled by a power of two for each block."""


class LinearLink(LinearFields):
    """What was selected, in bins of equal width."""

    kind: Literal["linear"] = "linear"


class QuantileLink(QuantileFields):
    """What was selected, in bins of equal population."""

    kind: Literal["quantile"] = "quantile"


class EntropyLink(EntropyFields):
    """What was selected, in as many bins as its entropy asks for."""

    kind: Literal["entropy"] = "entropy"
    floor: float = Field(default=6.0, ge=-16, le=16)
    """c, or c1 in the RMS form: bits that are always spent."""


class Float16Link(Settings):
    """What was selected, as 16-bit floats."""

    kind: Literal["fp16"] = "fp16"


class BFloat16Link(Settings):
    """What was selected, as 16-bit floats with the range of 32-bit ones."""

    kind: Literal["bf16"] = "bf16"


class Float8Link(Float8Fields):
    """What was selected, as 8-bit floats scaled by block."""

    kind: Literal["fp8"] = "fp8"


def _expand(value: Any) -> Any:
    """`linear(4)` as the dictionary that it stands for; anything else as it is."""
    if not isinstance(value, str):
        return value
    node = parse_expression(value if "(" in value else f"{value}()")
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError("no quantizer such as linear(4)")
    return read_call(node, ("linear", "quantile", "entropy", "fp16", "bf16", "fp8"))


QuantizerLink = Annotated[
    LinearLink | QuantileLink | EntropyLink | Float16Link | BFloat16Link | Float8Link,
    Field(discriminator="kind"),
    BeforeValidator(_expand),
]
HALVES = ("fp16", "bf16")
"""Quantizers whose output is no symbol that a Huffman code could shorten."""
