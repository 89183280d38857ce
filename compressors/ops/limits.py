"""Limits and names that passes, messages and specs share."""

from typing import Literal

SMALLEST_TAU = 2.0**-126
"""The smallest normal float32: kernels and messages hold tau in that type."""
LARGEST_TAU = 2.0**119
"""255 times this is a finite float32, with room for a sum."""
LARGEST_CHUNK = 1 << 16
"""Elements of a chunk, at most."""

Form = Literal[
    "bgt", "qgt", "strom", "f32", "fp16", "bf16", "fp8", "linear", "quantile", "steps", "bits", "patch"
]
"""The encoding of an update's values, a message's `form`, whichever method chose the values."""
ThresholdRule = Literal["wgt", "bgt", "qgt", "strom"]
"""How an element that reaches the threshold is sent (Anoosheh, section 2.1; Strom, section 2.6)."""


def check_chunks(chunk: int, keep: int) -> None:
    """Raises ValueError for a chunk or a number to keep that is out of its range."""
    if not 2 <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1):
        raise ValueError(f"chunk must be a power of two, 2 to {LARGEST_CHUNK}, not {chunk}")
    if not 0 <= keep <= chunk:
        raise ValueError(f"keep must be 0 to chunk = {chunk}, not {keep}")
