"""Statistics of a layer's gradient: percentiles of magnitudes, and the share of zeros."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_SAMPLE = 2**14
_QUANTILES = (0.5, 0.9, 0.99, 0.999)


class GradientStatistics(NamedTuple):
    """Magnitudes that 50, 90, 99 and 99.9% of a gradient's elements do not pass; their RMS; zeros."""

    p50: float
    p90: float
    p99: float
    p999: float
    rms: float
    """Root mean square."""
    zeros: float
    """Elements that are exactly zero, over elements, 0 to 1 (Rae, figure 2)."""


def gradient_statistics(gradient: Tensor) -> GradientStatistics:
    """Percentiles of |gradient|, its root mean square and its share of zeros.

    Of every m-th element, at most 16,384. A percentile is the magnitude of an element, without interpolation.
    All are 0 where there is no element.
    """
    flat = gradient.detach().flatten()
    stride = max(1, -(-flat.numel() // _SAMPLE))
    magnitudes = flat[::stride].abs().to(torch.float32).cpu().numpy()
    if not magnitudes.size:
        return GradientStatistics(*(0.0,) * len(GradientStatistics._fields))
    ranks = [max(0, math.ceil(quantile * magnitudes.size) - 1) for quantile in _QUANTILES]
    p50, p90, p99, p999 = np.partition(magnitudes, ranks)[ranks].tolist()
    rms = math.sqrt(float(np.square(magnitudes, dtype=np.float64).mean()))
    zeros = 1 - int(np.count_nonzero(magnitudes)) / magnitudes.size
    return GradientStatistics(p50, p90, p99, p999, rms, zeros)
