"""wgt: what reaches tau is sent whole (Anoosheh, section 2.1 a)."""

from typing import TYPE_CHECKING, ClassVar, Literal

from ..config.sparse import ThresholdedMethod, WholeValues

if TYPE_CHECKING:
    from ..ops.results import ThresholdRule


class WholeGradient(WholeValues, ThresholdedMethod):
    """WGT (Anoosheh, section 2.1 a): what reaches tau is sent whole, 32 bits an element, or quantized."""

    sends: ClassVar["ThresholdRule"] = "wgt"

    kind: Literal["wgt"] = "wgt"
