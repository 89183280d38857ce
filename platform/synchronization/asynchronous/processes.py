"""Mail between processes. Workers apply what has arrived, or exactly what a schedule says."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from taugrad.compressors.spans import RECORDER

from .mail import Inbox, Mail
from .meeting import connected
from .mesh import Enough, Mesh
from .message import ENDED, Message, signal, written
from .schedule import Course, Schedule


class ProcessMail(Mail):
    """This process's worker, among those of the default process group."""

    def __init__(
        self,
        device: torch.device,
        *,
        most_behind: int,
        silent_after_s: float,
        waits: bool,
        most_bytes: int,
        course: Course | None,
    ) -> None:
        """Connects to the others; all of them must call this together.

        Args:
            device: the workers'. With NCCL, the process group needs its buffers on the GPU.
            most_behind: how many steps the worker may be ahead of what it has received from any other one.
            silent_after_s: how long another worker may be silent.
            waits: whether to wait for a silent worker.
            most_bytes: the largest size of a payload.
            course: makes the schedule to follow; without it, the worker applies whatever has arrived.
        """
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")
        self._rank, self._workers = dist.get_rank(), dist.get_world_size()
        self._most_behind, self._course = most_behind, course
        self._mesh = Mesh(
            self._rank,
            connected(self._device),
            silent_after_s=silent_after_s,
            waits=waits,
            most_bytes=most_bytes,
        )
        # The thread refers to the mesh, and only the run refers to this object.
        weakref.finalize(self, self._mesh.close)
        self._set_out(0)

    def send(self, message: Message) -> None:
        """See `Mail.send`."""
        self._mesh.send(written(message))

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
        with self._waiting():
            return self._mesh.take(enough)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began = perf_counter()
        yield
        ended = perf_counter()
        self.waited_s += ended - began
        RECORDER.add("wait", "compute", began, ended)

    def end(self, step: int) -> None:
        """See `Mail.end`; only who follows a schedule needs to know."""
        if self._schedule is not None:
            self._mesh.send([signal(ENDED, step)])

    def drain(self, worker: int, step: int) -> list[Message]:
        """See `Mail.drain`."""
        everything = [step] * self._workers
        return self._take(lambda inbox, _: everything if inbox.has(everything, worker) else None)

    def begin(self, step: int) -> None:
        """See `Mail.begin`."""
        self._mesh.begin(step)
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
