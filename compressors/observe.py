"""What a layer's gradient looks like: percentiles of its magnitudes, and how many elements are zero."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_SAMPLE = 2**14
_QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Percentiles(NamedTuple):
    """Magnitudes that 50, 90, 99 and 99.9% of a gradient's elements do not pass; the share that is zero."""

    p50: float
    p90: float
    p99: float
    p999: float
    zeros: float
    """Elements that are exactly zero, over elements, 0 to 1 (Rae, figure 2)."""


def gradient_percentiles(gradient: Tensor) -> Percentiles:
    """Percentiles of |gradient| and its share of zeros.

    Of every m-th element, so that at most 16,384 are looked at. Each percentile is an element's own
    magnitude, the smallest that the given share does not pass.
    """
    flat = gradient.detach().flatten()
    if not flat.numel():
        return Percentiles(0.0, 0.0, 0.0, 0.0, 0.0)
    stride = -(-flat.numel() // _SAMPLE)
    magnitudes = flat[::stride].abs().to(torch.float32).cpu().numpy()
    ranks = [max(0, math.ceil(quantile * magnitudes.size) - 1) for quantile in _QUANTILES]
    p50, p90, p99, p999 = np.partition(magnitudes, ranks)[ranks].tolist()
    zeros = 1 - int(np.count_nonzero(magnitudes)) / magnitudes.size
    return Percentiles(p50, p90, p99, p999, zeros)
