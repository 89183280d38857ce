"""The order of a parameter's elements in its bucket, and that of its logical shape.

DDP lays a gradient out as its parameter lies when the bucket is made: a `channels_last` weight by its
strides. What is kept beside gradients has their order. What is saved has the order of the shape, since the
model that loads it may lie otherwise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MemoryOrder:
    """How the gradient of one parameter lies in its bucket."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Those of the parameter if it fills its memory without gaps and overlaps, otherwise those of its shape
    row by row: what DDP does."""

    @classmethod
    def of(cls, parameter: Tensor) -> "MemoryOrder":
        """As DDP would lay its gradient out now."""
        dense = torch.empty_like(parameter, device="meta").stride()
        if dense != parameter.stride():  # torch keeps the strides of what is dense, and of nothing else
            dense = torch.empty(parameter.shape, device="meta").stride()
        return cls(tuple(parameter.shape), dense)

    def shaped(self, flat: Tensor) -> Tensor:
        """A tensor of the logical shape, contiguous: where the order is the same, of the same memory.

        Args:
            flat: [numel], contiguous, in the bucket's order.
        """
        return flat.as_strided(self.shape, self.strides).contiguous()

    def flat(self, shaped: Tensor) -> Tensor:
        """A copy [numel], in the bucket's order, of a tensor of the logical shape."""
        flat = torch.empty(shaped.numel(), dtype=shaped.dtype, device=shaped.device)
        flat.as_strided(self.shape, self.strides).copy_(shaped)
        return flat
