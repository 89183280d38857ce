"""strom: what exceeds tau is sent as +tau or -tau (Strom, sections 2.3 to 2.6)."""

from typing import TYPE_CHECKING, ClassVar, Literal

from ..config.sparse import ThresholdedMethod

if TYPE_CHECKING:
    from ..ops.results import ThresholdRule


class Strom(ThresholdedMethod):
    """Strom (sections 2.3 to 2.6): what exceeds tau is sent as +tau or -tau, 1 bit an element."""

    sends: ClassVar["ThresholdRule"] = "strom"

    kind: Literal["strom"] = "strom"
