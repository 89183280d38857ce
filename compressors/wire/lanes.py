"""Several connections between each two workers, for gloo: one does not fill a link that is long and fast.

TCP sends only a limited amount before it is acknowledged, and starts slowly after a pause. A message goes in
as many parts as there are connections; its length goes with the first part.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from .gathering import SIZE_BYTES, told_length


@dataclass
class Receipt:
    """Where what one worker hands over will be, and what waits for it."""

    parts: list[Tensor]
    works: list[dist.Work]
    room: int | None = None
    """The most bytes of a message that has its length before it; None where all parts are full."""

    def wait(self) -> None:
        """Until all parts are here."""
        for work in self.works:
            work.wait()

    def arrived(self) -> Tensor:
        """uint8, what is here once `wait` has returned; a message from its length on."""
        if self.room is None or len(self.parts) == 1:
            return self.parts[0]
        bounds = _bounds(SIZE_BYTES + min(told_length(self.parts[0]), self.room), len(self.parts))
        return torch.cat(
            [part[: high - low] for part, (low, high) in zip(self.parts, pairwise(bounds), strict=True)]
        )


class Lanes:
    """Connections to all workers of a group; point to point, by tags, from any thread."""

    def __init__(self, group: dist.ProcessGroup, connections: int) -> None:
        """Connects all workers; all must call this together.

        Args:
            group: whose workers they are.
            connections: how many each two of them have; the first one is the group's own.
        """
        ranks = dist.get_process_group_ranks(group)
        others = [
            dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
            for _ in range(connections - 1)
        ]
        self._groups: list[dist.ProcessGroup] = [group, *others]

    def send(self, message: Tensor, to: int, tag: int) -> list[dist.Work]:
        """Sends a message with its length before it over all connections."""
        parts = [message[low:high] for low, high in pairwise(_bounds(message.numel(), len(self._groups)))]
        return [group.send([part], to, tag) for group, part in zip(self._groups, parts, strict=True)]

    def send_over_one(self, what: Tensor, to: int, tag: int) -> list[dist.Work]:
        """Sends what the receiver knows the length of."""
        return [self._groups[0].send([what], to, tag)]

    def expect(self, room: int, by: int, tag: int) -> Receipt:
        """Gets ready for a message of so many bytes at most, and its length."""
        each = -(-room // len(self._groups))
        parts = [
            torch.empty(SIZE_BYTES * (not lane) + each, dtype=torch.uint8)
            for lane in range(len(self._groups))
        ]
        works = [group.recv([part], by, tag) for group, part in zip(self._groups, parts, strict=True)]
        return Receipt(parts, works, room)

    def expect_over_one(self, length: int, by: int, tag: int) -> Receipt:
        """Gets ready for exactly so many bytes."""
        part = torch.empty(length, dtype=torch.uint8)
        return Receipt([part], [self._groups[0].recv([part], by, tag)])


def _bounds(length: int, parts: int) -> list[int]:
    """Where the parts of a message begin, and its end; its own length stays whole."""
    body = length - SIZE_BYTES
    return [0, *(SIZE_BYTES + body * part // parts for part in range(1, parts + 1))]
