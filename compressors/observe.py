"""What a layer's gradient looks like: percentiles of its magnitudes."""

from typing import NamedTuple

import torch
from torch import Tensor

_SAMPLE = 2**16
_QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Percentiles(NamedTuple):
    """Magnitudes that 50, 90, 99 and 99.9% of a gradient's elements do not pass."""

    p50: float
    p90: float
    p99: float
    p999: float


def gradient_percentiles(gradient: Tensor) -> Percentiles:
    """Percentiles of |gradient|, from every m-th element so that at most 65,536 are looked at."""
    flat = gradient.detach().flatten()
    if not flat.numel():
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    stride = -(-flat.numel() // _SAMPLE)
    magnitudes = flat[::stride].abs().to(torch.float32)
    quantiles = torch.tensor(_QUANTILES, dtype=torch.float32, device=flat.device)
    return Percentiles(*torch.quantile(magnitudes, quantiles).tolist())
