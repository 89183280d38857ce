"""Mail between the workers of one process; messages arrive as a schedule says."""

import numpy as np
from numpy.typing import NDArray

from .mail import Inbox, Mail
from .message import Message
from .schedule import Course, Schedule


class SimulatedMail(Mail):
    """Passes on in memory what real workers that follow the schedule would send."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._workers = range(len(course.step_times))
        self._inboxes = [Inbox(len(self._workers)) for _ in self._workers]
        self._end: int | None = None
        self._begin(0)

    def send(self, message: Message) -> None:
        """See `Mail.send`."""
        for worker in self._workers:
            if worker != message.sender:
                self._inboxes[worker].put(message)

    def receive(self, worker: int, step: int) -> list[Message] | None:
        """See `Mail.receive`: None until the other workers have sent what the schedule says."""
        due = [self._first + each for each in self._schedule.received(worker, step - self._first)]
        if self._end is not None:
            due = [min(each, self._end) for each in due]
        inbox = self._inboxes[worker]
        return inbox.take(due) if inbox.has(due, worker) else None

    def end(self, step: int) -> None:
        """See `Mail.end`."""
        self._end = step

    def drain(self, worker: int, step: int) -> list[Message]:
        """See `Mail.drain`."""
        return self._inboxes[worker].take()

    def begin(self, step: int) -> None:
        """See `Mail.begin`."""
        self._begin(step)

    def _begin(self, step: int) -> None:
        self._first, self._end = step, None
        self._schedule = Schedule(self._course, step)
        for inbox in self._inboxes:
            inbox.begin(step)

    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Mail.together`."""
        return own
