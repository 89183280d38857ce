"""Every worker's message to every worker, through torch.distributed (gloo or NCCL)."""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from .codecs.base import Bytes

ALIGNMENT = 8
SIZE_BYTES = 8
"""What each worker hands over to tell the length of its message."""


@dataclass(frozen=True)
class Gathering:
    """An exchange under way."""

    arrived: Future[list[Tensor]]
    """Resolves once `padded` holds every worker's bytes."""
    padded: Tensor
    """uint8 [workers, longest]; row r is worker r's message and padding."""
    sizes: list[int]
    """Bytes of each worker's message."""
    started: float
    """perf_counter when the message was handed over."""
    works: tuple[dist.Work, ...]
    """The collectives; whoever holds them last frees their tensors."""

    @property
    def wire_bytes(self) -> int:
        """Bytes that all workers together handed to the transport, padding and lengths included."""
        return self.padded.numel() + SIZE_BYTES * len(self.sizes)

    def messages(self) -> list[Bytes]:
        """Each worker's message, in the CPU's memory; call it once `arrived` is done."""
        rows = self.padded.cpu().numpy()
        return [row[:size] for row, size in zip(rows, self.sizes, strict=True)]


def start_gathering(message: Bytes, group: dist.ProcessGroup, device: torch.device) -> Gathering:
    """Starts to exchange messages of different lengths.

    Lengths first, in a gather that blocks; then one gather of messages padded to the longest. (Both
    calls come from the hook itself: a collective that was started by a callback would run in another
    order on each worker.)

    Args:
        message: uint8, this worker's.
        group: whose workers take part; all must call this in the same order.
        device: where the transport wants its buffers: CPU for gloo, the GPU for NCCL.
    """
    started = perf_counter()
    workers = dist.get_world_size(group)
    size = torch.tensor(message.size, dtype=torch.int64, device=device)
    sizes_out = torch.empty(workers, dtype=torch.int64, device=device)
    size_work = dist.all_gather(list(sizes_out.unbind()), size, group=group, async_op=True)
    assert size_work is not None
    size_work.wait()
    sizes = [int(s) for s in sizes_out.tolist()]

    longest = -(-max(sizes) // ALIGNMENT) * ALIGNMENT
    mine = torch.zeros(longest, dtype=torch.uint8)
    mine[: message.size] = torch.from_numpy(message)
    padded = torch.empty((workers, longest), dtype=torch.uint8, device=device)
    work = dist.all_gather(list(padded.unbind()), mine.to(device), group=group, async_op=True)
    assert work is not None
    return Gathering(work.get_future(), padded, sizes, started, (size_work, work))
