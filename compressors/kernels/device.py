"""The threshold pass in torch operations, for gradients that do not lie in the CPU's memory.

Same results, bit for bit, as the numba passes; several passes over memory where they need one. Only
the compacted output leaves the device.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..update import Update
from .threshold import WITHOUT_VALUES, PassResult, ThresholdRule


def threshold_pass(
    rule: ThresholdRule,
    residual: Tensor,
    gradient: Tensor,
    tau: np.float32,
    words: NDArray[np.uint32],
    values: NDArray[Any],
    *,
    base: int,
    sent: int,
) -> PassResult:
    """The same as `threshold.threshold_pass`, with residual and gradient on one device."""
    threshold = torch.tensor(tau, dtype=torch.float32, device=residual.device)
    total = residual + gradient
    magnitude = total.abs()
    finite = magnitude < torch.inf
    reached = magnitude > threshold if rule == "strom" else magnitude >= threshold
    positions = torch.nonzero(reached & finite).flatten()
    taken = total[positions]
    negative = taken < 0

    now_sent = sent + positions.numel()
    if rule == "wgt":
        quantum = taken
        values[sent:now_sent] = taken.cpu().numpy()
    elif rule in WITHOUT_VALUES:
        quantum = torch.where(negative, -threshold, threshold)
    else:
        levels = torch.clamp(torch.floor(taken.abs() / threshold), max=255)
        quantum = torch.where(negative, -(levels * threshold), levels * threshold)
        values[sent:now_sent] = levels.to(torch.uint8).cpu().numpy()
    words[sent:now_sent] = (((positions + base) << 1) | negative).cpu().numpy()

    residual.copy_(torch.where(finite, total, residual))
    residual[positions] = taken - quantum
    return PassResult(now_sent, float(residual.double().square().sum()), not bool(finite.all()))


def add(update: Update, dense: Tensor) -> None:
    """Adds an update to a float32 [n] tensor on any device; positions are distinct, so order is no matter."""
    amounts = torch.from_numpy(update.floats()).to(dense.device)
    if update.words is None:
        dense += amounts
    else:
        positions = torch.from_numpy((update.words >> 1).astype(np.int64)).to(dense.device)
        dense[positions] += amounts  # index_add_ would round denormals to zero on a GPU
