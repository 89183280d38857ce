"""Methods: a lossy rule with all its options, the head of every chain."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .base import Positions, Settings, Share, Symbols
from .line import line
from .quantizers import (
    HALVES,
    EntropyFields,
    Float8Fields,
    LinearFields,
    QuantileFields,
    QuantileLink,
    QuantizerLink,
)
from .thresholds import Threshold, Warmup, check_falling

SYMBOLS_WANTED = "put linear, quantile, entropy or fp8"


class Exempt(Settings):
    """Parameters that are sent whole, as float32: norms and biases are few, and sensitive."""

    smaller_than: int = Field(default=0, ge=0)
    """Parameters of fewer elements than this."""
    names: tuple[str, ...] = ()
    """Patterns of names, such as ["*.bias", "norm*"]."""


class Clip(Settings):
    """Cuts the residual now and then, so that no element owes more than a few tau (DL4J)."""

    every: int = Field(default=5, ge=1)
    """Iterations between two cuts."""
    to: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """The largest magnitude left, in multiples of tau."""


class Method(Settings):
    """Head of a chain; its text is the chain's line, and `chain` reads that."""

    def __str__(self) -> str:
        return line(self)

    def __repr__(self) -> str:
        return f"chain({line(self)!r})"


class _Method(Method):
    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse", "skip"] = "refuse"
    """A NaN or Inf in a gradient: raise an error that names the parameter, or skip the step and count it."""


class NoCompression(_Method):
    """Plain all-reduce of the whole gradient: the baseline, bit for bit what DDP does without a hook."""

    kind: Literal["none"] = "none"


class PowerSGD(Method):
    """torch's own PowerSGD hook (Vogels et al. 2019): low-rank factors in place of matrices."""

    kind: Literal["powersgd"] = "powersgd"
    rank: int = Field(default=1, ge=1)
    """Rank of the factors."""
    start: int = Field(default=10, ge=2)
    """Iterations of plain all-reduce before the first compressed one."""
    min_rate: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """A matrix is compressed only where that makes it this much smaller."""
    warm_start: bool = True
    """Begin each approximation from the one before."""
    feedback: bool = True
    """Keep what an approximation missed for the next iteration."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the first factors' random numbers."""
    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse"] = "refuse"
    """A NaN or Inf in a gradient raises an error: it would stay in the hook's memory for ever."""


class _Compressed(_Method):
    exempt: Exempt = Exempt()
    """Parameters that are sent whole."""
    decay: float = Field(default=1.0, ge=0, le=1)
    """What becomes of the residual from one iteration to the next: 1 keeps it, 0 forgets it."""


class _Sparse(_Compressed):
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum correction (Deep Gradient Compression, section 3.2): momentum before the selection, in place
    of the optimizer's, and forgotten where an element is sent."""
    codec: Positions = "auto"
    """How the positions of what is sent are written down; auto takes the smallest for each message."""


class _Thresholded(_Sparse):
    tau: Threshold
    """The threshold: an element is sent once its residual reaches tau in magnitude. A number, or a policy
    such as density(0.01), schedule({0: 1e-4, 1000: 1e-3}) or layers(1e-3, patterns={"conv*": 1e-4})."""
    clip: Clip | None = None
    """Cuts the residual every few iterations."""


class _WholeValues(_Sparse):
    quantize: QuantizerLink | None = None
    """What the values sent are quantized with; the error stays in the residual."""
    symbols: Symbols = "auto"
    """How the quantizer's symbols are written down."""

    @model_validator(mode="after")
    def _possible(self) -> "_WholeValues":
        if self.symbols != "auto" and (self.quantize is None or self.quantize.kind in HALVES):
            floats = getattr(self.quantize, "kind", getattr(self, "kind", ""))
            raise ValueError(
                f"{self.symbols} codes symbols, and {floats} sends floats: {SYMBOLS_WANTED} between"
            )
        if self.codec == "raw" and self.quantize is not None:
            raise ValueError(
                f"raw cannot follow {self.quantize.kind}, which has no bin for the zeros that raw writes "
                "where nothing is sent: choose another codec"
            )
        return self


class WholeGradient(_WholeValues, _Thresholded):
    """WGT (Anoosheh, section 2.1 a): what reaches tau is sent whole, 32 bits an element, or quantized."""

    kind: Literal["wgt"] = "wgt"


class BinarizedGradient(_Thresholded):
    """BGT (Anoosheh, section 2.1 b): what reaches tau is sent as +tau or -tau, 1 bit an element."""

    kind: Literal["bgt"] = "bgt"


class QuantizedGradient(_Thresholded):
    """QGT (Anoosheh, section 2.1 c): what reaches tau is sent in whole multiples of tau, 1 to 255."""

    kind: Literal["qgt"] = "qgt"
    symbols: Symbols = "auto"
    """How the multiples are written down."""

    @model_validator(mode="after")
    def _possible(self) -> "QuantizedGradient":
        if self.symbols != "auto" and self.codec == "raw":
            raise ValueError(f"{self.symbols} cannot follow raw, which writes values and positions at once")
        return self


class Strom(_Thresholded):
    """Strom (sections 2.3 to 2.6): what exceeds tau is sent as +tau or -tau, 1 bit an element."""

    kind: Literal["strom"] = "strom"


class TopK(_WholeValues):
    """The largest magnitudes of every parameter, a fixed share of them, whole or quantized."""

    kind: Literal["topk"] = "topk"
    density: Share
    """The share of a parameter's elements that is sent, at least one element."""
    sampled: bool = False
    """Take the magnitude that a sample suggests (about the share wanted) in place of the exact one."""
    warmup: Warmup | None = None
    """Begin with a higher density."""
    clip: Clip | None = None
    """Cuts the residual every few iterations; tau is the smallest magnitude sent."""

    @model_validator(mode="after")
    def _falling(self) -> "TopK":
        check_falling(self.density, self.warmup)
        return self


class ChunkedTopK(_WholeValues):
    """SparseLoCo's message (arXiv 2508.15706): the largest of every chunk, short indices, few bits."""

    kind: Literal["chunked_topk"] = "chunked_topk"
    chunk: int = Field(default=4096, ge=2, le=65536)
    """Elements of a chunk, a power of two: an index takes its logarithm in bits, 12 for 4096."""
    keep: int = Field(default=64, ge=1)
    """Elements of a chunk that are sent."""
    quantize: QuantizerLink | None = QuantileLink(bits=2)
    """What the values sent are quantized with; the error stays in the residual."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """What becomes of the residual from one iteration to the next: 1 keeps it, 0 forgets it."""
    codec: Literal["auto", "packed32", "bitmap", "golomb_rice", "chunked"] = "auto"  # type: ignore[assignment]
    """How the positions of what is sent are written down; chunked takes indices within chunks."""

    @model_validator(mode="after")
    def _whole_chunks(self) -> "ChunkedTopK":
        if self.chunk & (self.chunk - 1):
            raise ValueError(f"chunk = {self.chunk} is no power of two")
        if self.keep > self.chunk:
            raise ValueError(f"keep = {self.keep} is more than a chunk has ({self.chunk})")
        return self


class _Dense(_Compressed):
    """Every element is sent, in fewer bits."""


class Linear(_Dense, LinearFields):
    """Rae, section 2.3: every element in bins of equal width between its block's extremes."""

    kind: Literal["linear"] = "linear"
    symbols: Symbols = "auto"
    """How bin numbers are written down."""


class Quantile(_Dense, QuantileFields):
    """Rae, section 2.3.1: every element in bins of equal population, by their means."""

    kind: Literal["quantile"] = "quantile"
    symbols: Symbols = "auto"
    """How bin numbers are written down."""


class Entropy(_Dense, EntropyFields):
    """Oland-Raj, section 4: every element in bins of equal width, as many as the layer's entropy asks for."""

    kind: Literal["entropy"] = "entropy"
    symbols: Symbols = "auto"
    """How bin numbers are written down."""


class Float16(_Dense):
    """Every element as a 16-bit float; as torch's fp16 hook without error feedback, unless decay says so."""

    kind: Literal["fp16"] = "fp16"
    decay: float = Field(default=0.0, ge=0, le=1)
    """What becomes of the rounding error from one iteration to the next: 1 keeps it, 0 forgets it."""


class BFloat16(_Dense):
    """Every element as a bfloat16; as torch's bf16 hook without error feedback, unless decay says so."""

    kind: Literal["bf16"] = "bf16"
    decay: float = Field(default=0.0, ge=0, le=1)
    """What becomes of the rounding error from one iteration to the next: 1 keeps it, 0 forgets it."""


class Float8(_Dense, Float8Fields):
    """Every element as an 8-bit float (e4m3), scaled by block."""

    kind: Literal["fp8"] = "fp8"
    symbols: Symbols = "auto"
    """How the 8-bit floats are written down."""


ThresholdedMethod = WholeGradient | BinarizedGradient | QuantizedGradient | Strom
SparseMethod = ThresholdedMethod | TopK | ChunkedTopK
DenseMethod = Linear | Quantile | Entropy | Float16 | BFloat16 | Float8
CompressedMethod = SparseMethod | DenseMethod
"""What goes through our own messages."""
AnyMethod = NoCompression | PowerSGD | CompressedMethod
MethodUnion = Annotated[AnyMethod, Field(discriminator="kind")]
