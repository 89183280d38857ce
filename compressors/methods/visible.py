"""visible: in local steps, the elements that change an agreed weight once both are bfloat16 (PULSELoCo)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..lazy import torch
from ..ops.array import Tensor
from ..ops.interface import Batch, Pending, Selected, Target
from ..ops.parts import Part
from .base import BucketInput
from .sparse import SparseMethod, WholeValues
from .threshold import ThresholdedMethod


class _Gate(SparseMethod):
    """Lets a method choose among the elements that a model in bfloat16 sees.

    An element a, residual + pseudo-gradient, is visible if bfloat16(w - a) is not bfloat16(w), w being the
    agreed weight. The others stay in the residual. (Miahi and Belilovsky 2026, arXiv:2602.03839 v2: send what
    would change the next forward pass, with error feedback.)
    """

    compares_weights = True

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], taus: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        ops, pairs = given.ops, batch.pairs()
        if not pairs:
            return ops.take_by_threshold(self.sends, batch, target, taus)
        residuals = [residual for residual, _ in pairs if residual is not None]
        weights = torch.cat([_weights_of(part) for part in parts])
        kept, gradients = torch.cat(residuals), torch.cat([gradient for _, gradient in pairs]).float()
        sums = kept + gradients
        hidden = (weights - sums).bfloat16() == weights.bfloat16()  # not where a sum is NaN or Inf
        sizes = batch.sizes.tolist()
        torch._foreach_copy_(residuals, torch.split(kept.masked_fill_(hidden, 0), sizes))
        shown = batch.with_gradients(gradients.masked_fill_(hidden, 0))
        selected = ops.take_by_threshold(self.sends, shown, target, taus)
        torch._foreach_add_(residuals, torch.split(sums.masked_fill_(~hidden, 0), sizes))
        squares = ops.squares(residuals, target.readback)
        return lambda: selected()._replace(residual_squares=squares())


def _weights_of(part: Part) -> Tensor:
    assert part.weights is not None, "pattern_refusals refuses what has no agreed weights"
    return part.weights


class Visible(_Gate, WholeValues):
    """PULSELoCo: visible elements are sent in full, 32 bits each, or quantized."""

    has_tau = False

    kind: Literal["visible"] = "visible"


class VisibleStrom(_Gate, ThresholdedMethod):
    """Strom among the visible: elements that also exceed tau are sent as +tau or -tau, 1 bit each."""

    sends = "strom"

    kind: Literal["visible_strom"] = "visible_strom"
