"""Clamps tensors by torch's own operations, which serve every device."""

from collections.abc import Sequence

import torch
from torch import Tensor


def clamp(tensors: Sequence[Tensor], limits: Sequence[float]) -> None:
    """See `Ops.clamp`."""
    if tensors:
        torch._foreach_clamp_max_(list(tensors), limits)
        torch._foreach_clamp_min_(list(tensors), [-limit for limit in limits])
