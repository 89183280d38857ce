"""wgt: elements that reach tau are sent in full (Anoosheh, section 2.1 a)."""

from typing import Literal

from ..method.sparse import ThresholdedMethod, WholeValues


class WholeGradient(WholeValues, ThresholdedMethod):
    """WGT (Anoosheh, section 2.1 a): elements that reach tau are sent in full, 32 bits each, or quantized."""

    sends = "wgt"

    kind: Literal["wgt"] = "wgt"
