"""qgt: elements that reach tau are sent as whole multiples of it (Anoosheh, section 2.1 c)."""

from typing import Literal

from pydantic import model_validator

from ..method.base import Symbols
from ..method.sparse import ThresholdedMethod


class QuantizedGradient(ThresholdedMethod):
    """QGT (Anoosheh, section 2.1 c): elements that reach tau are sent as whole multiples of tau, 1 to 255."""

    sends = "qgt"

    kind: Literal["qgt"] = "qgt"
    symbols: Symbols = "auto"
    """Encoding of the multiples."""

    @property
    def symbol_codec(self) -> str:
        """See `Method.symbol_codec`."""
        return self.symbols

    @property
    def value_bits(self) -> float:
        """Multiples of tau are mostly 1 and 2, which Huffman's code writes in about 3 bits; and a sign."""
        return 4.0

    @classmethod
    def why_not_quantized(cls, quantizer: str) -> str:
        """See `Method.why_not_quantized`."""
        return f"qgt sends whole multiples of tau: they are quantized already, {quantizer} cannot follow"

    @model_validator(mode="after")
    def _possible(self) -> "QuantizedGradient":
        if self.symbols != "auto" and self.codec == "raw":
            raise ValueError(f"{self.symbols} cannot follow raw, which writes values and positions at once")
        return self
