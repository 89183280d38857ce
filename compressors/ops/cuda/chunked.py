"""The k largest magnitudes of every chunk on a device.

Arguments are those of `Passes`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

import numpy as np

from ..cpu.chunked import LARGEST_CHUNK
from .blocks import lay_out
from .reports import GradientType, Reports
from .runtime import Runtime


def chunked_pass(
    runtime: Runtime,
    residual: Any,
    gradient: Any,
    chunk: int,
    keep: int,
    words: Any,
    values: Any,
    reports: Reports,
    *,
    base: int = 0,
    gradient_type: GradientType = "float32",
) -> None:
    """Adds the gradient to the residual, moves the largest magnitudes of every chunk into the output.

    The same words, values and residual as of `ops.cpu.chunked.chunked_pass`. Every chunk sends exactly
    min(keep, its length) elements, fewer only where sums are not finite. Does not wait. A block of threads
    works on a chunk: chunks of less than 512 elements leave most of a GPU idle.

    Raises:
        ValueError: chunk or keep is out of its range.
    """
    if not 2 <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1):
        raise ValueError(f"chunk must be a power of two, 2 to {LARGEST_CHUNK}, not {chunk}")
    if not 0 <= keep <= chunk:
        raise ValueError(f"keep must be 0 to chunk = {chunk}, not {keep}")
    n = int(residual.size)
    chunks = max(1, -(-n // chunk))  # one without elements hands on how many words there are
    states = runtime.zeros(chunks + 1, np.uint64)
    runtime.launch(
        "chunked", f"chunked_{gradient_type}", chunks, lay_out(chunk, chunk).threads,
        residual, gradient, n, chunk, keep, base, words, values, states, reports.begin(),
    )  # fmt: skip
