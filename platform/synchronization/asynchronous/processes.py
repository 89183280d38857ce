"""Mail between processes. Workers apply what has arrived, or exactly what a schedule says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from taugrad.compressors.exchange.arrivals import Arrivals
from taugrad.compressors.exchange.carrier import Carrier, Payload
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import is_refusal

from .mail import Inbox, Mail
from .message import Message, ended, read, written
from .schedule import Course, Schedule

_TAG = "update"
Enough = Callable[[Inbox, Mapping[int, int]], Sequence[int] | None]
"""Gets what has arrived and, by worker, the step before which it last said that it stops until a drain.
Returns, by sender, the number before which messages are taken; None if not enough has arrived."""


class ProcessMail(Mail):
    """This process's worker, among those of the default process group."""

    def __init__(
        self, device: torch.device, carrier: Carrier, *, most_behind: int, course: Course | None
    ) -> None:
        """Joins the others.

        Args:
            device: the workers'. With NCCL, the process group needs its buffers on the GPU.
            carrier: of this worker.
            most_behind: how many steps the worker may be ahead of what it has received from any other one.
            course: makes the schedule to follow; without it, the worker applies whatever has arrived.
        """
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")
        self._carrier, self._workers = carrier, carrier.workers
        self._most_behind, self._course = most_behind, course
        self._arrivals = Arrivals(carrier, _TAG)
        self._inbox = Inbox(carrier.workers)
        self._ended = dict.fromkeys(carrier.others, 0)
        """By worker, the step before which it last ended."""
        self._set_out(0)

    def send(self, message: Message) -> None:
        """See `Mail.send`."""
        self._send_to_all(written(message))

    def _send_to_all(self, payload: Payload) -> None:
        for other in self._carrier.others:
            self._carrier.send(other, _TAG, payload)

    def receive(self, worker: int, step: int) -> list[Message]:
        """See `Mail.receive`; it waits, and so is never None."""
        if self._schedule is None:
            needed = [step - self._most_behind] * self._workers
            return self._take(lambda inbox, _: inbox.arrived if inbox.has(needed, worker) else None)
        first = self._first
        due = [first + each for each in self._schedule.received(worker, step - first)]

        def all_due(inbox: Inbox, ended: Mapping[int, int]) -> Sequence[int] | None:
            # An end before this schedule is that of an earlier drain.
            ends = {sender: end for sender, end in ended.items() if end > first}
            wanted = [min(number, ends.get(sender, number)) for sender, number in enumerate(due)]
            return wanted if inbox.has(wanted, worker) else None

        return self._take(all_due)

    def _take(self, enough: Enough) -> list[Message]:
        """Waits for enough messages; each sender's in order."""
        with self._waiting():
            self._sort(0)
            while (wanted := self._taken(enough)) is None:
                self._sort(None)
            return wanted

    def _taken(self, enough: Enough) -> list[Message] | None:
        for problem in self._arrivals.lost.values():
            # A worker that refuses its gradient says so before it ends.
            refusals = [each for each in self._inbox.take() if is_refusal(each.payload)]
            if not refusals:
                raise problem
            return refusals[:1]
        wanted = enough(self._inbox, self._ended)
        return None if wanted is None else self._inbox.take(wanted)

    def _sort(self, wait_s: float | None) -> None:
        for sender, arrived in self._arrivals.take(wait_s):
            found = read(sender, arrived, self._workers)
            if isinstance(found, Message):
                self._inbox.put(found)
            else:
                self._ended[sender] = found

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began = perf_counter()
        yield
        now = perf_counter()
        self.waited_s += now - began
        RECORDER.add("wait", "compute", began, now)

    def end(self, step: int) -> None:
        """See `Mail.end`; only who follows a schedule needs to know."""
        if self._schedule is not None:
            self._send_to_all(ended(step))

    def drain(self, worker: int, step: int) -> list[Message]:
        """See `Mail.drain`."""
        everything = [step] * self._workers
        return self._take(lambda inbox, _: everything if inbox.has(everything, worker) else None)

    def begin(self, step: int) -> None:
        """See `Mail.begin`."""
        self._inbox.begin(step)
        self._set_out(step)

    def _set_out(self, step: int) -> None:
        self._first = step
        self._schedule = None if self._course is None else Schedule(self._course, step)

    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Mail.together`."""
        mine = torch.from_numpy(own[0]).to(self._device)
        everybody = [torch.empty_like(mine) for _ in range(self._workers)]
        with self._waiting():
            dist.all_gather(everybody, mine)
        return np.stack([each.cpu().numpy() for each in everybody])
