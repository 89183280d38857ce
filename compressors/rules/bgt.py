"""bgt: elements that reach tau are sent as +tau or -tau (Anoosheh, section 2.1 b)."""

from typing import Literal

from ..method.sparse import ThresholdedMethod


class BinarizedGradient(ThresholdedMethod):
    """BGT (Anoosheh, section 2.1 b): elements that reach tau are sent as +tau or -tau, 1 bit each."""

    sends = "bgt"

    kind: Literal["bgt"] = "bgt"
