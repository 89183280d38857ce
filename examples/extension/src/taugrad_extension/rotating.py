"""rotating: of every parameter one stripe an iteration is sent, in turns."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method.base import SMALLEST_TAU
from taugrad.compressors.method.sparse import WholeValues
from taugrad.compressors.ops.interface import Batch, Selected
from taugrad.compressors.ops.readback import Pending
from taugrad.compressors.rules.base import BucketInput, Memories
from taugrad.compressors.rules.sparse import SparseRule


class Rotating(WholeValues):
    """Every n-th element is sent whole, or quantized; in each iteration those behind the ones before."""

    first_field = "stripes"
    rule = "taugrad_extension.rotating:Stripes"

    kind: Literal["rotating"] = "rotating"
    stripes: int = Field(default=16, ge=1)
    """n: after so many iterations every element was sent once."""


class Stripes(SparseRule):
    """Elements by their place and the iteration, on whatever device they are."""

    sends = "wgt"  # the value itself stands for an element
    has_tau = False
    config: Rotating

    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """The first element of the stripe, for every part."""
        return [float(iteration % self.config.stripes)] * len(parts)

    def take(
        self, batch: Batch, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        """See `SparseRule.take`."""
        ends, squares, refused, end = list[int](), list[float](), list[bool](), 0
        of_each = zip(batch.residuals, batch.gradients, batch.bases, aims, strict=True)
        for residual, gradient, base, first in of_each:
            total = residual + gradient
            finite = total.isfinite()
            residual.copy_(torch.where(finite, total, residual))
            places = np.arange(int(first), residual.numel(), self.config.stripes)
            there = torch.from_numpy(places).to(residual.device)
            begin, end = end, end + places.size
            words, values = batch.target.words[begin:end], batch.target.values[begin:end]
            made = (base + places).astype(np.uint32) << np.uint32(1)
            given.ops.tensor(words.view(np.uint8)).copy_(torch.from_numpy(made.view(np.uint8)))
            given.ops.tensor(values).copy_(residual[there])
            residual[there] = 0
            ends.append(end)
            squares.append(float(residual.double().square().sum()))
            refused.append(not bool(finite.all()))
        return lambda: Selected(ends, squares, refused, [SMALLEST_TAU] * len(ends))
