"""bgt: what reaches tau is sent as +tau or -tau (Anoosheh, section 2.1 b)."""

from typing import TYPE_CHECKING, ClassVar, Literal

from ..config.sparse import ThresholdedMethod

if TYPE_CHECKING:
    from ..ops.results import ThresholdRule


class BinarizedGradient(ThresholdedMethod):
    """BGT (Anoosheh, section 2.1 b): what reaches tau is sent as +tau or -tau, 1 bit an element."""

    sends: ClassVar["ThresholdRule"] = "bgt"

    kind: Literal["bgt"] = "bgt"
