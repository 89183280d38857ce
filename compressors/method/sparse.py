"""The fields of methods that send some elements and keep the others: the head of a chain."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from .base import LARGEST_CHUNK, Group, Share, Symbols, ThresholdRule
from .calls import expand
from .methods import CompressedMethod
from .policies import Policy, Warmup, check_falling, threshold_of
from .quantizers import Quantile, Quantizer
from .registry import AS_IT_IS, CODECS, POLICIES, QUANTIZERS


def positions(*builtin: str) -> Any:
    """The type of a field that takes one of some built-in codecs, or a registered one, by name."""
    names: Any = Literal[("auto", *builtin)]
    return Annotated[AS_IT_IS[names], WrapValidator(_read_codec)]


def _read_codec(value: Any, builtin: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, str) and value in CODECS.registered else builtin(value)


if TYPE_CHECKING:
    Threshold = float | Policy
    AnyQuantizer = Quantizer
    Positions = str
    ChunkPositions = str
else:
    Threshold = threshold_of(POLICIES)
    AnyQuantizer = Annotated[
        QUANTIZERS.union(), BeforeValidator(lambda value: expand(value, QUANTIZERS, bare=True))
    ]
    Positions = positions(*(name for name in CODECS if name != "chunked"))
    ChunkPositions = positions("packed32", "bitmap", "golomb_rice", "chunked")


class Clip(Group):
    """Clips the residual every few iterations to a few tau (DL4J)."""

    first_field: ClassVar[str] = "every"

    every: int = Field(default=5, ge=1)
    """Iterations between two clippings."""
    to: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """The largest magnitude that is kept, in multiples of tau."""


class SparseMethod(CompressedMethod):
    """Sends the elements that are selected by residual + gradient, and keeps the rest."""

    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum correction (Deep Gradient Compression, section 3.2): momentum before the selection, instead of
    in the optimizer. It is reset where an element is sent."""
    codec: Positions = "auto"
    """Encoding of the positions of what is sent; auto takes the smallest for each message."""


class ThresholdedMethod(SparseMethod):
    """Sends the elements that reach, or exceed, a threshold."""

    first_field: ClassVar[str] = "tau"
    rule = "taugrad.compressors.rules.sparse:ByThreshold"
    needs: ClassVar[Mapping[str, str]] = {"sends": "how an element is sent: wgt, bgt, qgt or strom"}
    sends: ClassVar[ThresholdRule]
    """How an element is sent."""

    tau: Threshold
    """The threshold: an element is sent once its residual reaches tau in magnitude. A number, or a policy
    such as density(0.01), schedule({0: 1e-4, 1000: 1e-3}) or layers(1e-3, patterns={"conv*": 1e-4})."""
    clip: Clip | None = None
    """Clips the residual every few iterations."""

    @property
    def value_bits(self) -> float:
        """About what an element sent takes, besides its position, to plan by: a sign takes a bit."""
        return 1.0

    @property
    def aim(self) -> float | None:
        """See `Settings.aim`: its policy's."""
        return self.tau.aim if isinstance(self.tau, Policy) else None

    def aimed_at(self, share: float) -> Self:
        if self.aim is None or not isinstance(self.tau, Policy):
            return super().aimed_at(share)
        return self.model_copy(update={"tau": self.tau.aimed_at(share)})

    @classmethod
    def why_not_quantized(cls, quantizer: str) -> str:
        return f"{cls.line_name()} sends +tau or -tau: nothing is left for {quantizer} to quantize"


class WholeValues(SparseMethod):
    """Sends the selected values as they are, or quantized."""

    quantize: AnyQuantizer | None = None
    """The quantizer of the values that are sent; the error stays in the residual."""
    symbols: Symbols = "auto"
    """Encoding of the quantizer's symbols."""

    @property
    def value_bits(self) -> float:
        """About what an element sent takes, besides its position, to plan by."""
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
    """Advice where a codec of symbols follows floats."""
    names = [name for name in QUANTIZERS.builtin if QUANTIZERS[name].has_symbols]
    return f"put {' or '.join(', '.join(names).rsplit(', ', 1))}"


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
    def why_not_quantized(cls, quantizer: str) -> str:
        return f"qgt sends whole multiples of tau: they are quantized already, {quantizer} cannot follow"

    @model_validator(mode="after")
    def _possible(self) -> "QuantizedGradient":
        if self.symbols != "auto" and self.codec == "raw":
            raise ValueError(f"{self.symbols} cannot follow raw, which writes values and positions at once")
        return self


class Strom(ThresholdedMethod):
    """Strom (sections 2.3 to 2.6): elements that exceed tau are sent as +tau or -tau, 1 bit each."""

    sends = "strom"

    kind: Literal["strom"] = "strom"


class TopK(WholeValues):
    """The largest magnitudes of every parameter, a fixed share of them, whole or quantized."""

    first_field = "density"
    aims = True
    rule = "taugrad.compressors.rules.sparse:ByRank"

    kind: Literal["topk"] = "topk"
    density: Share
    """The share of a parameter's elements to send, at least one element."""
    sampled: bool = False
    """Estimate the magnitude from a sample, which sends about the density asked for, instead of the exact
    one."""
    warmup: Warmup | None = None
    """Start with a higher density."""
    clip: Clip | None = None
    """Clips the residual every few iterations; tau is the smallest magnitude sent."""

    @model_validator(mode="after")
    def _falling(self) -> "TopK":
        check_falling(self.density, self.warmup)
        return self


class ChunkedTopK(WholeValues):
    """SparseLoCo's message (arXiv 2508.15706): the largest elements of every chunk, in few bits."""

    first_field = "keep"
    rule = "taugrad.compressors.rules.sparse:ByChunk"

    kind: Literal["chunked_topk"] = "chunked_topk"
    chunk: int = Field(default=4096, ge=2, le=LARGEST_CHUNK)
    """Elements per chunk, a power of two. An index takes its logarithm in bits, 12 for 4096."""
    keep: int = Field(default=64, ge=1)
    """Elements per chunk that are sent."""
    quantize: AnyQuantizer | None = Quantile(bits=2)
    """The quantizer of the values that are sent; the error stays in the residual."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """Factor of the residual from one iteration to the next (error feedback): 1 keeps it, 0 drops it."""
    codec: ChunkPositions = "auto"
    """Encoding of the positions of what is sent; chunked uses indices within chunks."""

    @model_validator(mode="after")
    def _whole_chunks(self) -> "ChunkedTopK":
        if self.chunk & (self.chunk - 1):
            raise ValueError(f"chunk = {self.chunk} is not a power of two")
        if self.keep > self.chunk:
            raise ValueError(f"keep = {self.keep} is more than a chunk has ({self.chunk})")
        return self

    @property
    def aim(self) -> float | None:
        return self.keep / self.chunk

    def aimed_at(self, share: float) -> Self:
        """See `Settings.aimed_at`: a whole number of each chunk, at least one."""
        return self.model_copy(update={"keep": min(self.chunk, max(1, round(share * self.chunk)))})
