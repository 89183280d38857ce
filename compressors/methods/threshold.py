"""Methods that send the elements that reach a threshold: wgt, bgt, qgt (Anoosheh) and strom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from ..fields import POLICIES
from ..ops.interface import Batch, Pending, Selected, Target
from ..ops.parts import Part
from ..thresholds.base import Policy, policy_of, threshold_of
from .base import BucketInput, Symbols
from .sparse import Clip, SparseMethod, WholeValues

if TYPE_CHECKING:
    Threshold = float | Policy
else:
    Threshold = threshold_of(POLICIES)


class ThresholdedMethod(SparseMethod):
    """Sends the elements that reach, or exceed, a threshold."""

    first_field: ClassVar[str] = "tau"

    tau: Threshold
    """The threshold: an element is sent once its residual reaches tau in magnitude. A number, or a policy
    such as density(0.01), schedule({0: 1e-4, 1000: 1e-3}) or layers(1e-3, patterns={"conv*": 1e-4})."""
    clip: Clip | None = None
    """Clips the residual every few iterations."""

    @property
    def policy(self) -> Policy:
        return policy_of(self.tau)

    @property
    def name_patterns(self) -> dict[str, Sequence[str]]:
        return super().name_patterns | {"tau.patterns": tuple(getattr(self.tau, "patterns", ()))}

    @classmethod
    def quantizer_error(cls, quantizer: str) -> str:
        return f"{cls.line_name()} sends +tau or -tau: nothing is left for {quantizer} to quantize"

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], taus: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_by_threshold(self.sends, batch, target, taus)


class WholeGradient(WholeValues, ThresholdedMethod):
    """WGT (Anoosheh, section 2.1 a): elements that reach tau are sent in full, 32 bits each, or quantized."""

    sends = "wgt"

    kind: Literal["wgt"] = "wgt"


class BinarizedGradient(ThresholdedMethod):
    """BGT (Anoosheh, section 2.1 b): elements that reach tau are sent as +tau or -tau, 1 bit each."""

    sends = "bgt"

    kind: Literal["bgt"] = "bgt"


class QuantizedGradient(ThresholdedMethod):
    """QGT (Anoosheh, section 2.1 c): elements that reach tau are sent as whole multiples of tau, 1 to 255."""

    sends = "qgt"

    kind: Literal["qgt"] = "qgt"
    symbols: Symbols = "auto"
    """Encoding of the multiples."""

    @property
    def value_bits(self) -> float:
        """Multiples of tau are mostly 1 and 2, which Huffman's code writes in about 3 bits; and a sign."""
        return 4.0

    @classmethod
    def quantizer_error(cls, quantizer: str) -> str:
        return f"qgt sends whole multiples of tau: they are quantized already, {quantizer} cannot follow"

    @model_validator(mode="after")
    def _raw_has_symbols(self) -> QuantizedGradient:
        if self.symbols != "auto" and self.codec == "raw":
            raise ValueError(f"{self.symbols} cannot follow raw, which writes values and positions at once")
        return self


class Strom(ThresholdedMethod):
    """Strom (sections 2.3 to 2.6): elements that exceed tau are sent as +tau or -tau, 1 bit each."""

    sends = "strom"

    kind: Literal["strom"] = "strom"
