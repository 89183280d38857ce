"""The interface of the ways that messages go from worker to worker while nobody waits for a round."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .message import Message


class Mail(ABC):
    """Carries the messages of this process's workers, and brings them those of the others.

    Steps are counted over the whole run. Between two drains every worker makes the same number of them.

    Attributes:
        waited_s: how long this process has waited for the others so far; simulated workers never do.
    """

    waited_s = 0.0

    @abstractmethod
    def send(self, message: Message) -> None:
        """A message begins its way to all other workers; does not wait."""

    @abstractmethod
    def receive(self, worker: int, step: int) -> list[Message] | None:
        """What a worker is to apply before a step.

        Args:
            worker: of this process.
            step: its steps before.

        Returns:
            Each sender's in their order; None where the worker cannot go on before others here have.

        Raises:
            PeerLost: another worker is gone.
        """

    @abstractmethod
    def end(self, step: int) -> None:
        """Says that this process's workers make no step from this one on before all are drained."""

    @abstractmethod
    def drain(self, worker: int, step: int) -> list[Message]:
        """The rest of what was sent to a worker before `step`, once all of it has arrived.

        Raises:
            PeerLost: another worker is gone.
        """

    @abstractmethod
    def begin(self, step: int) -> None:
        """Says that all are drained, and go on with this step."""

    @abstractmethod
    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """What all workers have noted: int64 [workers, ...] from [workers here, ...]; called together."""


class Inbox:
    """What has arrived at one worker and is not applied yet.

    Attributes:
        arrived: by sender, the number of its next message: how many there were in the whole run.
    """

    def __init__(self, workers: int) -> None:
        self.arrived = [0] * workers
        self._waiting: list[deque[Message]] = [deque() for _ in range(workers)]

    def put(self, message: Message) -> None:
        """Takes one in."""
        self.arrived[message.sender] = message.number + 1
        self._waiting[message.sender].append(message)

    def has(self, up_to: Sequence[int], worker: int) -> bool:
        """Whether everything before these numbers has arrived from the others, by sender."""
        pairs = zip(self.arrived, up_to, strict=True)
        return all(found >= wanted for sender, (found, wanted) in enumerate(pairs) if sender != worker)

    def take(self, up_to: Sequence[int] | None = None) -> list[Message]:
        """Takes out what is there, or what comes before these numbers, by sender."""
        taken = []
        for sender, waiting in enumerate(self._waiting):
            while waiting and (up_to is None or waiting[0].number < up_to[sender]):
                taken.append(waiting.popleft())
        return taken

    def begin(self, step: int) -> None:
        """Everything before a step is applied. A sender may have gone on already."""
        self.arrived = [max(each, step) for each in self.arrived]
