"""One bucket of gradients into one update, and updates back into a bucket."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .kernels import device, sparse, threshold
from .kernels.threshold import VALUE_DTYPE, PassResult, ThresholdRule
from .message import NonFinite
from .update import SparseUpdate


@dataclass(frozen=True)
class Part:
    """One parameter's share of a bucket."""

    name: str
    gradient: Tensor
    """Floating point [numel], contiguous, in the bucket."""
    residual: Tensor
    """float32 [numel] on the same device."""


@dataclass(frozen=True)
class PartTally:
    """What one parameter sent."""

    name: str
    elements: int
    sent: int
    residual_squares: float


@dataclass
class Scratch:
    """Room for the elements sent, reused from bucket to bucket.

    It is as long as the largest bucket, but a page of it takes up memory only once it was written to:
    what a threshold lets through, not what it holds back.
    """

    words: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    values: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.uint8))

    def reserve(self, rule: ThresholdRule, n: int) -> None:
        """Makes sure that an update of n elements fits, whatever tau lets through."""
        room = n + threshold.SPARE
        if self.words.size < room:
            self.words = np.empty(room, np.uint32)
        values_room = 1 if rule == "bgt" else room
        if self.values.size < values_room or self.values.dtype != VALUE_DTYPE[rule]:
            self.values = np.empty(values_room, VALUE_DTYPE[rule])


def compress(
    rule: ThresholdRule,
    tau: float,
    parts: Sequence[Part],
    scratch: Scratch,
    *,
    hold_back_zeros: bool = False,
) -> tuple[SparseUpdate | NonFinite, list[PartTally]]:
    """Runs the rule over every part: residual += gradient, what reaches tau is sent, the rest is kept.

    Args:
        rule: `wgt`, `bgt` or `qgt`.
        tau: the threshold; used as float32.
        parts: the bucket's parameters in their order; residuals are changed in place.
        scratch: the update returned shares its memory and is valid until its next use.
        hold_back_zeros: send nothing for a part whose gradient is zero everywhere. DDP drops the
            result for parameters that no worker used, and what was sent for them would be lost.

    Returns:
        The update, or `NonFinite` when a part's sum is not finite somewhere: then nothing is sent, the
        residuals gain every finite element and none of the others; and a tally of each part.
    """
    n = sum(part.gradient.numel() for part in parts)
    tau32 = np.float32(tau)
    scratch.reserve(rule, n)
    base = sent = 0
    refused: int | None = None
    tallies: list[PartTally] = []
    for ordinal, part in enumerate(parts):
        gradient = part.gradient.to(torch.float32)
        before = sent
        if hold_back_zeros and _all_zero(gradient):
            squares = _squares(part.residual)
        else:
            result = _threshold_pass(rule, part.residual, gradient, tau32, scratch, base, sent)
            sent, squares = result.sent, result.residual_squares
            if result.nonfinite and refused is None:
                refused = ordinal
        base += gradient.numel()
        tallies.append(PartTally(part.name, gradient.numel(), sent - before, squares))
    values_K = scratch.values[: 0 if rule == "bgt" else sent]
    update = SparseUpdate(rule, n, tau32, scratch.words[:sent], values_K)
    if refused is None:
        return update, tallies
    put_back(update, parts)
    unsent = [PartTally(part.name, part.residual.numel(), 0, _squares(part.residual)) for part in parts]
    return NonFinite(rule, n, tau32, refused), unsent


def put_back(update: SparseUpdate, parts: Sequence[Part]) -> None:
    """Adds an update that was not sent to the residuals it was taken from."""
    dense = torch.zeros(update.n, dtype=torch.float32, device=parts[0].residual.device)
    add_to(update, dense)
    shares = torch.split(dense, [part.residual.numel() for part in parts])
    for part, share in zip(parts, shares, strict=True):
        part.residual.add_(share)


def _squares(residual: Tensor) -> float:
    return float(residual.double().square().sum())


def _all_zero(gradient: Tensor) -> bool:
    if gradient.device.type == "cpu":
        return bool(sparse.all_zero(gradient.numpy()))
    return not bool(gradient.any())


def _threshold_pass(
    rule: ThresholdRule,
    residual: Tensor,
    gradient: Tensor,
    tau: np.float32,
    scratch: Scratch,
    base: int,
    sent: int,
) -> PassResult:
    if gradient.device.type == "cpu":
        return threshold.threshold_pass(
            rule, residual.numpy(), gradient.numpy(), tau, scratch.words, scratch.values, base=base, sent=sent
        )
    return device.threshold_pass(
        rule, residual, gradient, tau, scratch.words, scratch.values, base=base, sent=sent
    )


def add_to(update: SparseUpdate, dense: Tensor) -> None:
    """Adds an update to a contiguous float32 [n] tensor on any device."""
    if dense.device.type != "cpu":
        device.add(update, dense)
        return
    dense_N = dense.numpy()
    if update.rule == "wgt":
        sparse.add_values(update.words, update.values, dense_N)
    elif update.rule == "bgt":
        sparse.add_taus(update.words, update.tau, dense_N)
    else:
        sparse.add_levels(update.words, update.values, update.tau, dense_N)
