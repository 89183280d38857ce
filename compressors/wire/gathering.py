"""One exchange of messages of different lengths, from every worker to every worker.

All collectives are started by the hook itself, or after that of the last bucket. If a callback started one,
its order would differ between workers.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from .reaching import reaching

_ALIGNMENT = 8
SIZE_BYTES = 8
"""What each worker sends to tell the length of its message."""


class Gathering(ABC):
    """An exchange under way.

    Attributes:
        arrived: resolves when the bytes that were sent so far have arrived; None if `complete` has to wait
            for them. Valid after `send` and `follow`.
        may_go_on: whether a second round may follow, in `complete`.
        sizes: bytes of each worker's message; valid when they have arrived.
        wire_bytes: what all workers together handed to the transport, lengths included; what one
            hands to several counts once; valid likewise.
        started: perf_counter when the message was handed over.
        works: the collectives; the last holder frees their tensors.
    """

    arrived: Future[Any] | None = None
    may_go_on = False
    sizes: list[int]
    wire_bytes: int

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.workers = group, dist.get_world_size(group)
        self.started = perf_counter()
        self.works: list[dist.Work] = []

    @property
    def received_bytes(self) -> int:
        """What arrived at all workers together; valid as `wire_bytes` is."""
        return self.wire_bytes * (self.workers - 1)

    def send(self) -> None:  # noqa: B027 (through gloo it is sent at once)
        """Sends the message, if this is not done yet, when all lengths have arrived. It waits for these.

        All workers must send in the same order.
        """

    def follow(self) -> None:  # noqa: B027 (collectives have a future of their own)
        """Makes `arrived` resolve without waiting, if this needs a thread.

        Not needed if `complete` is called next.
        """

    def is_whole(self) -> bool:
        """Whether everything has arrived when `arrived` has resolved."""
        return True

    @abstractmethod
    def complete(self) -> None:
        """Waits until everything has arrived; all workers must complete their exchanges in the same order."""

    @abstractmethod
    def messages(self) -> Sequence[Tensor]:
        """What has arrived: each worker's message, uint8, in the CPU's memory."""

    def rows(self) -> Tensor:
        """The same in one tensor: uint8 [workers, longest or more], row r begins with worker r's message."""
        return stacked(self.messages())

    def _wait(self) -> None:
        """Waits for the latest collective."""
        with reaching():
            self.works[-1].wait()


class Exact(Gathering):
    """Sends the length at the start, and the message, exactly as long as it is, when all lengths are known.

    Work between the two costs no waiting.
    """

    def __init__(self, message: Tensor, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group)
        self._message, self._device = message, device
        mine = torch.full((1,), message.numel(), dtype=torch.int64, device=device)
        self._told = torch.empty((self.workers, 1), dtype=torch.int64, device=device)
        work = dist.all_gather(list(self._told.unbind()), mine, group=group, async_op=True)
        assert work is not None
        self.works.append(work)

    def send(self) -> None:
        """See `Gathering.send`."""
        self._wait()
        self.sizes = [int(each) for each in self._told.flatten().tolist()]
        mine = self._message.to(self._device)
        self._arriving = torch.empty(sum(self.sizes), dtype=torch.uint8, device=self._device)
        work = dist.all_to_all_single(
            self._arriving,
            mine.repeat(self.workers),
            self.sizes,
            [mine.numel()] * self.workers,
            group=self.group,
            async_op=True,
        )
        assert isinstance(work, dist.Work)
        self.works.append(work)
        self.wire_bytes = sum(self.sizes) + self.workers * SIZE_BYTES
        if self._device.type == "cpu":
            # Futures on a GPU run callbacks at once: a callback that reads would block the backward pass.
            self.arrived = work.get_future()

    def complete(self) -> None:
        """See `Gathering.complete`."""
        self._wait()

    def messages(self) -> Sequence[Tensor]:
        """See `Gathering.messages`."""
        return torch.split(self._arriving.cpu(), self.sizes)


def with_length(message: Tensor, room: int) -> Tensor:
    """A message's length, and as much of the message as fits: uint8 [SIZE_BYTES + n]; on the CPU."""
    body = message.numpy()[:room]  # a third of what torch's operations take
    whole = np.empty(SIZE_BYTES + body.size, np.uint8)
    whole[:SIZE_BYTES] = np.frombuffer(message.numel().to_bytes(SIZE_BYTES, sys.byteorder), np.uint8)
    whole[SIZE_BYTES:] = body
    return torch.from_numpy(whole)


def told_length(arrived: Tensor) -> int:
    """The length before a message; 0 if nothing was sent."""
    return int.from_bytes(bytes(arrived[:SIZE_BYTES].tolist()), sys.byteorder, signed=True)


def stacked(messages: Sequence[Tensor]) -> Tensor:
    """Messages in rows, each padded with zeros: uint8 [workers, longest or more]."""
    longest = max(each.numel() for each in messages)
    rows = torch.zeros((len(messages), -(-longest // _ALIGNMENT) * _ALIGNMENT), dtype=torch.uint8)
    for row, message in zip(rows, messages, strict=True):
        row[: message.numel()].copy_(message)
    return rows
