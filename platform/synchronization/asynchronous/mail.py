"""The interface of mail: how messages get from worker to worker without rounds."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .message import Message


class Mail(ABC):
    """Sends the messages of this process's workers, and delivers those of the others to them.

    Steps are counted over the whole run. Between two drains, every worker makes the same number of steps.

    Attributes:
        waited_s: how long this process has waited for the others so far; 0 for simulated workers.
    """

    waited_s = 0.0

    @abstractmethod
    def send(self, message: Message) -> None:
        """Starts to send a message to all other workers; does not wait."""

    @abstractmethod
    def receive(self, worker: int, step: int) -> list[Message] | None:
        """The messages that a worker must apply before a step.

        Args:
            worker: of this process.
            step: the number of its steps before.

        Returns:
            Those of each sender in order; None if other workers of this process must make steps first.

        Raises:
            PeerLost: another worker is gone.
        """

    @abstractmethod
    def end(self, step: int) -> None:
        """Tells the others that workers here make no step from this one on until all are drained."""

    @abstractmethod
    def drain(self, worker: int, step: int) -> list[Message]:
        """Waits until everything that was sent to a worker before `step` has arrived; returns the rest of it.

        Raises:
            PeerLost: another worker is gone.
        """

    @abstractmethod
    def begin(self, step: int) -> None:
        """Called when all workers are drained and continue with this step."""

    @abstractmethod
    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gathers all workers' notes: int64 [workers, ...] from [workers here, ...]; call it together."""


class Inbox:
    """The messages that have arrived at one worker and are not applied yet.

    Attributes:
        arrived: by sender, the number of its next message, counted over the whole run.
    """

    def __init__(self, workers: int) -> None:
        self.arrived = [0] * workers
        self._waiting: list[deque[Message]] = [deque() for _ in range(workers)]

    def put(self, message: Message) -> None:
        """Adds a message."""
        self.arrived[message.sender] = message.number + 1
        self._waiting[message.sender].append(message)

    def has(self, up_to: Sequence[int], worker: int) -> bool:
        """Whether all messages before these numbers have arrived from the others; numbers are by sender."""
        pairs = zip(self.arrived, up_to, strict=True)
        return all(found >= wanted for sender, (found, wanted) in enumerate(pairs) if sender != worker)

    def take(self, up_to: Sequence[int] | None = None) -> list[Message]:
        """Takes out the messages that are there, or only those before these numbers; by sender."""
        taken = []
        for sender, waiting in enumerate(self._waiting):
            while waiting and (up_to is None or waiting[0].number < up_to[sender]):
                taken.append(waiting.popleft())
        return taken

    def begin(self, step: int) -> None:
        """Called when everything before a step is applied. Senders may already be further."""
        self.arrived = [max(each, step) for each in self.arrived]
