"""Where all workers meet: before evaluations and checkpoints, and at the end."""

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ..rounds import Traffic
from .post import Post


class Meeting(ABC):
    """What all workers put together when they meet."""

    @abstractmethod
    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """What all workers have noted: int64 [workers, ...] from [workers here, ...]; called together."""

    @abstractmethod
    def count_links(self, traffic: Traffic) -> None:
        """Adds what went over links since they last met, as far as it is known here."""


class ProcessMeeting(Meeting):
    """Of one worker a process, by torch's default process group."""

    def __init__(self, post: Post) -> None:
        """Joins them.

        Args:
            post: of this process's worker; it counts what that sends.
        """
        self._post = post
        self._counted = np.zeros((2, post.workers), np.int64)

    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Meeting.together`."""
        mine = torch.from_numpy(own[0])
        everybody = [torch.empty_like(mine) for _ in range(self._post.workers)]
        dist.all_gather(everybody, mine)
        return np.stack([each.numpy() for each in everybody])

    def count_links(self, traffic: Traffic) -> None:
        """See `Meeting.count_links`: what this process's worker has sent."""
        post = self._post
        counts = np.stack([post.link_bytes, post.link_messages])
        traffic.link_bytes[post.rank] += counts[0] - self._counted[0]
        traffic.link_messages[post.rank] += counts[1] - self._counted[1]
        self._counted = counts
