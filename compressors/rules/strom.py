"""strom: elements that exceed tau are sent as +tau or -tau (Strom, sections 2.3 to 2.6)."""

from typing import Literal

from ..method.sparse import ThresholdedMethod


class Strom(ThresholdedMethod):
    """Strom (sections 2.3 to 2.6): elements that exceed tau are sent as +tau or -tau, 1 bit each."""

    sends = "strom"

    kind: Literal["strom"] = "strom"
