"""wgt: what reaches tau is sent whole (Anoosheh, section 2.1 a)."""

from typing import Literal

from ..config.sparse import ThresholdedMethod, WholeValues


class WholeGradient(WholeValues, ThresholdedMethod):
    """WGT (Anoosheh, section 2.1 a): what reaches tau is sent whole, 32 bits an element, or quantized."""

    sends = "wgt"

    kind: Literal["wgt"] = "wgt"
