"""Gradients of some parameters, as DDP or FSDP2 hands them over to be exchanged together."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..torch_internals import GradBucket


@dataclass(frozen=True)
class Bucket:
    """Gradients of some parameters, one after the other."""

    index: int
    buffer: Tensor
    """Floating point [elements], the gradients; at last the result."""
    names: list[str]
    """Names of the parameters, in the order of the buffer."""
    sizes: list[int]
    """Elements of the buffer for each parameter: two real numbers for a complex one."""
    is_awaited: bool = False
    """Whether the thread that brings it has nothing left to do but to wait for the result."""
    earlier: Mapping[str, Tensor] = field(default_factory=dict)
    """By parameter, what an earlier pass has exchanged, as it would lie in the buffer, [size]; it is not in
    the buffer."""
    scale: float | None = None
    """Scale of a loss's scaler, by which gradients were divided: the result is multiplied by it."""
    ddp: GradBucket | None = None
    """DDP's own, where it is one."""
    series: int = 0
    """Added to the number of a message about it, where not every pass is about all buckets."""

    @property
    def title(self) -> str:
        """For timelines."""
        return f"bucket {self.index}"

    @property
    def shares(self) -> tuple[Tensor, ...]:
        """Each parameter's share of the buffer, [size]."""
        return torch.split(self.buffer, self.sizes)

    def add_earlier(self, times: float) -> None:
        """Adds so many times what an earlier pass has exchanged to the buffer."""
        for name, share in zip(self.names, self.shares, strict=True) if self.earlier else ():
            earlier = self.earlier.get(name)
            if earlier is None:
                continue
            if earlier.is_cuda:  # a callback runs on a stream of its own
                earlier.record_stream(torch.cuda.current_stream(earlier.device))
            share.add_(earlier, alpha=times)
