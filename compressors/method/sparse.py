"""The base of methods that send some elements and keep the others."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from ..tau.base import Memory, Policy, ThresholdPolicy
from ..tau.given import policy_of
from .base import Group, Symbols
from .calls import expand_link
from .methods import CompressedMethod
from .registry import AS_IT_IS, CODECS, POLICIES, QUANTIZERS
from .thresholds import threshold_of

if TYPE_CHECKING:
    from ..ops.results import ThresholdRule
    from ..quantizers.base import Quantizer, QuantizerLink
    from ..rules.base import Rule
    from ..rules.selection import Selection

    Threshold = float | Policy
    AnyQuantizer = QuantizerLink
    Positions = str
else:
    from pydantic import BeforeValidator

    Threshold = threshold_of(POLICIES.ours())
    AnyQuantizer = Annotated[QUANTIZERS.choice(), BeforeValidator(expand_link)]


class Clip(Group):
    """Clips the residual now and then, so that no element's residual exceeds a few tau (DL4J)."""

    first_field: ClassVar[str] = "every"

    every: int = Field(default=5, ge=1)
    """Iterations between two clippings."""
    to: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """The largest magnitude that is kept, in multiples of tau."""


def positions(*ours: str) -> Any:
    """The type of a field that takes one of some codecs of ours, or another package's, by name."""
    names: Any = Literal[("auto", *ours)]
    return Annotated[AS_IT_IS[names], WrapValidator(_read_codec)]


def _read_codec(value: Any, ours: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, str) and value not in ("auto", *CODECS.our_names) and value in CODECS:
        return CODECS[value].name
    return ours(value)


if not TYPE_CHECKING:
    Positions = positions(*(name for name in CODECS.our_names if name != "chunked"))


class SparseMethod(CompressedMethod):
    """Sends the elements that are selected by residual + gradient, and keeps the rest."""

    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum correction (Deep Gradient Compression, section 3.2): momentum before the selection, instead of
    in the optimizer. It is reset where an element is sent."""
    codec: Positions = "auto"
    """Encoding of the positions of what is sent; auto takes the smallest for each message."""

    @property
    def position_codec(self) -> str:
        """See `Method.position_codec`."""
        return self.codec

    @property
    def own_momentum(self) -> float:
        """See `Method.own_momentum`."""
        return self.momentum

    @property
    def clipping(self) -> Clip | None:
        """How the residual is clipped."""
        return None

    def build(self) -> "Rule":
        """See `CompressedMethod.build`."""
        from ..rules.sparse import SparseRule  # noqa: PLC0415 (torch)

        return SparseRule(self)

    @abstractmethod
    def selection(self) -> "Selection":
        """What selects the elements, at work."""


class ThresholdedMethod(SparseMethod):
    """Sends the elements that reach, or exceed, a threshold."""

    first_field: ClassVar[str] = "tau"
    sends: ClassVar["ThresholdRule"]
    """What stands for an element."""

    tau: Threshold
    """The threshold: an element is sent once its residual reaches tau in magnitude. A number, or a policy
    such as density(0.01), schedule({0: 1e-4, 1000: 1e-3}) or layers(1e-3, patterns={"conv*": 1e-4})."""
    clip: Clip | None = None
    """Clips the residual every few iterations."""

    @property
    def clipping(self) -> Clip | None:
        """See `SparseMethod.clipping`."""
        return self.clip

    @property
    def value_bits(self) -> float:
        """About what an element sent takes, besides its position, to plan by: a sign takes a bit."""
        return 1.0

    def policy(self) -> ThresholdPolicy[Any]:
        """What decides tau, at work."""
        return policy_of(self.tau, self)

    def selection(self) -> "Selection":
        """See `SparseMethod.selection`."""
        from ..rules.selection import ByThreshold  # noqa: PLC0415 (it reads this module)

        return ByThreshold(self)

    def memory_of(self, name: str) -> type[Memory]:
        """See `Method.memory_of`."""
        return self.policy().memory_of(name)

    @property
    def aim(self) -> float | None:
        """See `Method.aim`: its policy's."""
        return self.tau.aim if isinstance(self.tau, Policy) else None

    def aimed_at(self, share: float) -> Self:
        """See `Method.aimed_at`."""
        if self.aim is None or not isinstance(self.tau, Policy):
            return super().aimed_at(share)
        return self.model_copy(update={"tau": self.tau.aimed_at(share)})

    def turn(self, before: float, memories: Mapping[str, Any]) -> None:
        """See `Method.turn`."""
        self.policy().turn(before, memories)

    @classmethod
    def problem(cls, name: str) -> str:
        """See `Settings.problem`."""
        lacking = f"{cls.__name__} needs sends, what stands for an element: wgt, bgt, qgt or strom"
        return super().problem(name) or ("" if hasattr(cls, "sends") else lacking)

    @classmethod
    def why_not_quantized(cls, quantizer: str) -> str:
        """See `Method.why_not_quantized`."""
        return f"{cls.line_name()} sends +tau or -tau: nothing is left for {quantizer} to quantize"


class WholeValues(SparseMethod):
    """Sends the selected values as they are, or quantized."""

    quantize: AnyQuantizer | None = None
    """The quantizer of the values that are sent; the error stays in the residual."""
    symbols: Symbols = "auto"
    """Encoding of the quantizer's symbols."""

    @property
    def quantizer(self) -> "Quantizer | None":
        """See `Method.quantizer`."""
        return self.quantize

    @property
    def symbol_codec(self) -> str:
        """See `Method.symbol_codec`."""
        return self.symbols

    @property
    def value_bits(self) -> float:
        """See `ThresholdedMethod.value_bits`."""
        return 32.0 if self.quantize is None else self.quantize.value_bits

    @model_validator(mode="after")
    def _possible(self) -> "WholeValues":
        if self.symbols != "auto" and (self.quantize is None or not self.quantize.has_symbols):
            floats = self.line_name() if self.quantize is None else self.quantize.kind
            raise ValueError(
                f"{self.symbols} encodes symbols, but {floats} sends floats: {symbols_wanted()} between"
            )
        if self.codec == "raw" and self.quantize is not None:
            raise ValueError(
                f"raw cannot follow {self.quantize.kind}, which has no bin for the zeros that raw writes "
                "where nothing is sent: choose another codec"
            )
        return self


def symbols_wanted() -> str:
    """What to do where symbols are wanted and there are floats."""
    names = [name for name, each in QUANTIZERS.ours().items() if each.has_symbols]
    return f"put {' or '.join(', '.join(names).rsplit(', ', 1))}"
