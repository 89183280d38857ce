"""The k largest magnitudes of a whole parameter on a device, exactly; and one guessed from a sample.

Arguments are those of `Passes`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

import numpy as np

from ..cpu.topk import SAMPLE, check_sampling, magnitude_at
from .reports import GradientType, Reports
from .runtime import Runtime

_THREADS = 256
_TILE = 4096
"""Elements that a block of threads looks at together, as in topk.cu."""
_MOST_COUNTING = 1024
"""Blocks of threads that count: all that an H100 or H200 runs at once."""
_LEVELS = 3
_BINS = 2048


def topk_pass(
    runtime: Runtime,
    residual: Any,
    gradient: Any,
    k: int,
    words: Any,
    values: Any,
    reports: Reports,
    *,
    base: int = 0,
    gradient_type: GradientType = "float32",
) -> None:
    """Adds the gradient to the residual, moves the k largest magnitudes into the output, keeps the rest.

    The same words, values, residual and tau as of `ops.cpu.topk.topk_pass`: of equal magnitudes the lower
    indices are sent, fewer than k where fewer reach SMALLEST_TAU, and none where an element's sum is not
    finite (it keeps its old residual). Does not wait.

    Raises:
        ValueError: k is negative, or n is too large.
    """
    n = int(residual.size)
    if k < 0 or n >= 2**31:
        raise ValueError(f"k must be 0 or more and n less than 2^31, not {k} and {n}")
    report = reports.begin()
    tiles = (n + 3 + _TILE - 1) // _TILE  # a tile may begin up to three elements before the first
    counting = min(tiles, _MOST_COUNTING)
    histograms, search = runtime.zeros(_LEVELS * _BINS, np.uint32), runtime.zeros(2, np.uint32)
    for level in range(_LEVELS):
        histogram = histograms[level * _BINS : (level + 1) * _BINS]
        if level == 0:
            runtime.launch(
                "topk", f"take_up_{gradient_type}", counting, _THREADS,
                residual, gradient, n, tiles, histogram, report,
            )  # fmt: skip
        else:
            runtime.launch("topk", "count", counting, _THREADS, residual, n, tiles, level, search, histogram)
        runtime.launch("topk", "narrow_down", 1, _THREADS, histogram, level, k, search, report)
    states = runtime.zeros(tiles + 1, np.uint64)
    runtime.launch(
        "topk", "send_top", tiles, _THREADS, residual, n, base, search, words, values, states, report
    )


def start_sampling(
    runtime: Runtime, residual: Any, gradient: Any, keys: Any, *, gradient_type: GradientType = "float32"
) -> None:
    """Looks at a stratified sample. Does not wait."""
    n, m = int(residual.size), int(keys.size)
    runtime.launch(
        "topk", f"sample_{gradient_type}", -(-m // _THREADS), _THREADS, residual, gradient, n, m, keys
    )


def sampled_magnitude(
    runtime: Runtime,
    residual: Any,
    gradient: Any,
    density: float,
    sample: int = SAMPLE,
    *,
    gradient_type: GradientType = "float32",
) -> np.float32:
    """What `ops.cpu.topk.sampled_magnitude` finds, of arrays on a device. Waits once, for the sample."""
    check_sampling(density, sample)
    keys = runtime.empty(min(sample, int(residual.size)), np.uint32)
    start_sampling(runtime, residual, gradient, keys, gradient_type=gradient_type)
    magnitudes = runtime.fetch(keys).view(np.float32)
    return magnitude_at(magnitudes[np.isfinite(magnitudes)], density)
