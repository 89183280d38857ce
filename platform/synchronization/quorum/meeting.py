"""Meetings of all workers: before evaluations and checkpoints, and at the end."""

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ..rounds import Traffic
from .mailroom import Mailroom


class Meeting(ABC):
    """What all workers combine when they meet."""

    @abstractmethod
    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gathers all workers' notes: int64 [workers, ...] from [workers here, ...]; call it together."""

    @abstractmethod
    def count_links(self, traffic: Traffic) -> None:
        """Adds the traffic of each link since the last meeting, as far as it is known here."""


class ProcessMeeting(Meeting):
    """The meetings of workers in processes of their own, through torch's default process group."""

    def __init__(self, mailroom: Mailroom) -> None:
        """Joins them.

        Args:
            mailroom: of this process's worker; it counts what that sends.
        """
        self._mail = mailroom
        self._counted = np.zeros((2, mailroom.workers), np.int64)

    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Meeting.together`."""
        mine = torch.from_numpy(own[0])
        everybody = [torch.empty_like(mine) for _ in range(self._mail.workers)]
        dist.all_gather(everybody, mine)
        return np.stack([each.numpy() for each in everybody])

    def count_links(self, traffic: Traffic) -> None:
        """See `Meeting.count_links`: what this process's worker has sent."""
        mail = self._mail
        counts = np.stack([mail.link_bytes, mail.link_messages])
        traffic.link_bytes[mail.rank] += counts[0] - self._counted[0]
        traffic.link_messages[mail.rank] += counts[1] - self._counted[1]
        self._counted = counts
