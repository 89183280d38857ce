"""What a compressor does, as data: the pydantic models are the configuration, in YAML, JSON and Python.

Importing this module is cheap (no torch, no numba), so that command lines and spec readers start fast.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

CodecName = Literal["auto", "raw", "packed32", "bitmap"]

SMALLEST_TAU = 2.0**-126
"""The smallest normal float32: kernels and messages hold tau in that type."""
LARGEST_TAU = 2.0**119
"""255 times this is still a finite float32, with room to add it to something."""


def _fits_float32(tau: float) -> float:
    if not SMALLEST_TAU <= tau <= LARGEST_TAU:
        raise ValueError(f"must be greater than 0 ({SMALLEST_TAU:.2g} to {LARGEST_TAU:.2g})")
    return tau


Tau = Annotated[float, AfterValidator(_fits_float32)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse", "skip"] = "refuse"
    """A NaN or Inf in a gradient: raise an error that names the parameter, or skip the step and count it."""


class NoCompression(_Config):
    """Plain all-reduce of the whole gradient: the baseline, bit for bit what DDP does without a hook."""

    kind: Literal["none"] = "none"


class _Thresholded(_Config):
    tau: Tau
    """The threshold: an element is sent once its residual reaches tau in magnitude."""
    codec: CodecName = "auto"
    """How the elements sent are written down; auto takes the smallest for each message."""


class WholeGradient(_Thresholded):
    """WGT (Anoosheh, section 2.1 a): what reaches tau is sent whole, 32 bits an element."""

    kind: Literal["wgt"] = "wgt"


class BinarizedGradient(_Thresholded):
    """BGT (Anoosheh, section 2.1 b): what reaches tau is sent as +tau or -tau, 1 bit an element."""

    kind: Literal["bgt"] = "bgt"


class QuantizedGradient(_Thresholded):
    """QGT (Anoosheh, section 2.1 c): what reaches tau is sent in whole multiples of tau, 1 to 255."""

    kind: Literal["qgt"] = "qgt"


CompressorConfig = Annotated[
    NoCompression | WholeGradient | BinarizedGradient | QuantizedGradient, Field(discriminator="kind")
]
"""Any compressor; `kind` tells which."""

ThresholdedConfig = WholeGradient | BinarizedGradient | QuantizedGradient
