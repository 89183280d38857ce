"""The base of all methods, and the methods without messages of their own: none and powersgd.

A method is a lossy rule with its options, the head of a chain; others are in `dense.py` and `sparse.py`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .base import Group, Settings
from .calls import line
from .quantizers import Quantizer


class Exempt(Group):
    """Parameters that are sent whole, as float32: norms and biases are small and sensitive."""

    smaller_than: int = Field(default=0, ge=0)
    """Send parameters with fewer elements than this without compression."""
    names: tuple[str, ...] = ()
    """Send parameters whose name matches one of these patterns without compression, such as ["*.bias",
    "norm*"]."""


class Method(Settings):
    """Head of a chain; `str` gives the chain's line, which `chain` reads."""

    if TYPE_CHECKING:
        kind: str
        reduction: Literal["mean", "sum"]
        nonfinite: Literal["refuse", "skip"]

    def __str__(self) -> str:
        return line(self, self.quantizer, self.position_codec, self.symbol_codec)

    def __repr__(self) -> str:
        return f"chain({str(self)!r})"

    @property
    def quantizer(self) -> Quantizer | None:
        """The quantizer of the selected values."""
        quantizer: Quantizer | None = getattr(self, "quantize", None)
        return quantizer

    @property
    def position_codec(self) -> str:
        """The name of the codec of positions, or `auto`."""
        return str(getattr(self, "codec", "auto"))

    @property
    def symbol_codec(self) -> str:
        """The name of the codec of symbols, or `auto`."""
        return str(getattr(self, "symbols", "auto"))

    @property
    def momentum_correction(self) -> float:
        """The factor of momentum correction; 0: none."""
        return float(getattr(self, "momentum", 0.0))

    @property
    def has_fixed_size(self) -> bool:
        """Whether the size of a message does not depend on gradients, so that collectives can exchange it."""
        return False

    @classmethod
    def why_not_quantized(cls, quantizer: str) -> str:
        """The reason why no quantizer can follow."""
        why = "only what a sparse rule selected whole can be quantized"
        return f"{quantizer} cannot follow {cls.line_name()}: {why}"


class _Common(Method):
    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse", "skip"] = "refuse"
    """What to do about a NaN or Inf in a gradient: raise an error that names the parameter, or skip the step
    and count it."""


class NoCompression(_Common):
    """Plain all-reduce of the whole gradient: the baseline, bit for bit what DDP does without a hook."""

    kind: Literal["none"] = "none"


class PowerSGD(Method):
    """torch's own PowerSGD hook (Vogels et al. 2019): low-rank factors instead of matrices."""

    first_field: ClassVar[str] = "rank"

    kind: Literal["powersgd"] = "powersgd"
    rank: int = Field(default=1, ge=1)
    """Rank of the factors."""
    start: int = Field(default=10, ge=2)
    """Iterations of plain all-reduce before the first compressed one."""
    min_rate: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """A matrix is compressed only if this makes it smaller by at least this factor."""
    warm_start: bool = True
    """Start each approximation from the previous one."""
    feedback: bool = True
    """Error feedback: add what an approximation missed to the next iteration's gradient."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the first random factors."""
    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse"] = "refuse"
    """A NaN or Inf in a gradient raises an error: it would stay in the hook's memory for ever."""


class CompressedMethod(_Common):
    """Methods that send messages (`wire`)."""

    needs: ClassVar[Mapping[str, str]] = {"rule": "a Rule"}
    rule: ClassVar[str | type]
    """The `rules.base.Rule`, or its address."""

    exempt: Exempt = Exempt()
    """Parameters that are sent whole."""
    decay: float = Field(default=1.0, ge=0, le=1)
    """Factor of the residual from one iteration to the next (error feedback): 1 keeps it, 0 drops it."""
