"""The fields of methods that send every element in fewer bits: each is a quantizer of whole parameters."""

import sys
from typing import Any

from pydantic import ConfigDict, Field

from .base import Symbols
from .methods import CompressedMethod
from .quantizers import FIXED_BITS, BFloat16, Entropy, Float8, Float16, Linear, Quantile, Quantizer


class DenseMethod(CompressedMethod, Quantizer):
    """Every element is sent, in fewer bits: each parameter is quantized."""

    rule = "taugrad.compressors.rules.dense:DenseRule"

    @property
    def has_fixed_size(self) -> bool:
        widths = (4, 8) if self.has_symbols else (16,)
        return self.quantizes == FIXED_BITS and self.symbol_codec != "huffman" and self.value_bits in widths


class _WithSymbols(DenseMethod):
    symbols: Symbols = "auto"
    """Encoding of the bin numbers."""


class _WithoutSymbols(DenseMethod):
    decay: float = Field(default=0.0, ge=0, le=1)
    """Factor of the rounding error from one iteration to the next (error feedback): 1 keeps it, 0 drops
    it."""


def dense_method(quantizer: type[Quantizer]) -> type[DenseMethod]:
    """The method that quantizes every element of each parameter."""
    base: Any = _WithSymbols if quantizer.has_symbols else _WithoutSymbols
    name, bases = f"Dense{quantizer.__name__}", (base, quantizer)
    # pydantic would look for docstrings of fields in the source of a class statement.
    config = ConfigDict(use_attribute_docstrings=False)
    body = {"__module__": __name__, "__doc__": quantizer.__doc__, "model_config": config}
    made: Any = type(base)(name, bases, body)
    setattr(sys.modules[__name__], name, made)  # where pickle looks for it
    return made  # type: ignore[no-any-return]


_QUANTIZERS: tuple[type[Quantizer], ...] = (Linear, Quantile, Entropy, Float16, BFloat16, Float8)
DENSE = tuple(dense_method(quantizer) for quantizer in _QUANTIZERS)
"""The built-in ones."""
