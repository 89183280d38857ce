"""The mode `async`: workers that send to all others and wait for nobody (Strom, 2.3 to 2.6)."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from taugrad.compressors import Step, Totals
from taugrad.compressors.observe import GradientStatistics
from taugrad.compressors.spans import RECORDER

from ...data.feeding import Batch
from ...training.generators import Randomness
from ..base import Moment, Outcome, Synchronization
from ..links import Links
from ..rounds import Crew
from .ledger import Ledger
from .mail import Mail
from .message import Message
from .worker import Staleness, Worker

_STATE_VERSION = 1


class AsynchronousTraining(Synchronization):
    """A replica for each worker here. Between drains replicas differ: each has received other messages.

    An iteration consists of every worker's step with that number. Simulated workers may be at different
    steps, according to the schedule: a worker's batch waits until the messages before its step were sent.

    Attributes:
        workers_here: by rank, this process's.
    """

    lockstep = False

    def __init__(self, crew: Crew, mail: Mail, workers: Sequence[Worker], randomness: Randomness) -> None:
        """Takes charge.

        Args:
            crew: of the workers; for what all do together.
            mail: carries what they send.
            workers: one for each of the crew's ranks, with models of the same weights on every worker.
            randomness: theirs.
        """
        self.ranks, self.workers = crew.ranks, crew.workers
        self._crew, self._mail, self._randomness = crew, mail, randomness
        self.workers_here = list(workers)
        self.model = workers[0].replica.model
        crew.broadcast([tensor for tensor in self.model.state_dict().values() if tensor.numel()])
        for worker in workers:
            worker.begin_from_model()
        self._names = workers[0].replica.names
        elements = sum(each.numel() for each in workers[0].replica.parameters)
        self._ledger = Ledger(self.ranks, self.workers, elements)
        self._step = Step()
        self._statistics: dict[str, GradientStatistics] = {}
        self._waiting: list[deque[tuple[Batch, Moment]]] = [deque() for _ in workers]
        self._drained = 0
        """Steps of each worker before the last drain."""

    def iterate(self, batches: Sequence[Batch], moment: Moment) -> float:
        """See `Synchronization.iterate`. The loss is that of the workers that could make the step yet."""
        self._step = self._ledger.begin()
        for waiting, batch in zip(self._waiting, batches, strict=True):
            waiting.append((batch, moment))
        return self._advance()

    def _advance(self) -> float:
        """Lets every worker here make the steps that it can make; returns the mean of their losses."""
        losses = []
        went_on = True
        while went_on:
            went_on = False
            for local, worker in enumerate(self.workers_here):
                while self._waiting[local] and self._receive(local, worker):
                    losses.append(self._make_step(local, worker))
                    went_on = True
        return sum(losses) / len(losses) if losses else 0.0

    def _receive(self, local: int, worker: Worker) -> bool:
        """Applies what is due before a worker's next step; False if some of it has not been sent yet."""
        with self._exchanging():
            messages = self._mail.receive(worker.rank, worker.steps)
        if messages is None:
            return False
        self._apply(local, worker, messages, worker.steps - self._drained)
        return True

    def _apply(self, local: int, worker: Worker, messages: Sequence[Message], number: int) -> None:
        began, staleness = perf_counter(), Staleness()
        worker.apply(messages, staleness)
        self._ledger.note_ages(number, local, staleness)
        ended = perf_counter()
        self._step.decompress_s += (ended - began) / len(self.ranks)
        RECORDER.add("decode", "compute", began, ended)

    def _make_step(self, local: int, worker: Worker) -> float:
        batch, moment = self._waiting[local].popleft()
        number = worker.steps - self._drained
        with self._randomness.of(worker.rank):
            stepped = worker.step(batch, moment.position, observe=moment.observe and worker.rank == 0)
        self._mail.send(stepped.message)
        self._ledger.note(number, local, worker, stepped)
        self._statistics = stepped.statistics or self._statistics
        self._step.compress_s += stepped.compress_s / len(self.ranks)
        self._step.decompress_s += stepped.decompress_s / len(self.ranks)
        if stepped.refused >= 0 and worker.refuses:
            raise worker.nonfinite(stepped.refused, worker.rank)
        return stepped.loss

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Adds the time that this process waits for the others inside to the iteration's ledger."""
        before = self._mail.waited_s + self._crew.waited_s
        yield
        waited = self._mail.waited_s + self._crew.waited_s - before
        self._step.exchange_s += waited
        self._step.blocked_s += waited

    def settle(self) -> None:
        """See `Synchronization.settle`: a drain. Everything that was sent is applied everywhere."""
        if not self._ledger.begun:
            return
        drained = perf_counter()
        self._mail.end(self._done)
        self._advance()
        assert not any(self._waiting), "what a step waits for was sent before"
        for local, worker in enumerate(self.workers_here):
            while any(each < self._done for each in worker.received.messages):
                with self._exchanging():
                    messages = self._mail.drain(worker.rank, self._done)
                self._apply(local, worker, messages, -1)
        with self._exchanging():
            self._agree()
            notes = self._mail.together(self._ledger.own_notes())
        self._ledger.close(notes, self._names, (perf_counter() - drained) / len(self.ranks))
        self._drained = self.workers_here[0].steps
        self._mail.begin(self._drained)

    @property
    def _done(self) -> int:
        """Iterations begun, in the whole run."""
        return self._drained + self._ledger.begun

    @torch.no_grad()
    def _agree(self) -> None:
        """Puts the weights, which are the same on all workers, and worker 0's buffers into the model."""
        buffers = self.workers_here[0].buffers()
        self._crew.broadcast(buffers)
        for worker in self.workers_here:
            worker.show()
            for own, agreed in zip(worker.buffers(), buffers, strict=True):
                own.copy_(agreed)

    def caught_up(self) -> list[Outcome]:
        """See `Synchronization.caught_up`."""
        self.settle()
        return self._ledger.taken()

    @property
    def last_step(self) -> Step:
        """See `Synchronization.last_step`: seconds at once, the rest after a drain."""
        return self._step

    @property
    def totals(self) -> Totals:
        """See `Synchronization.totals`: of the iterations before the last drain."""
        return Totals(**self._ledger.totals.state_dict())

    @property
    def statistics(self) -> dict[str, GradientStatistics]:
        """See `Synchronization.statistics`."""
        return self._statistics

    def links(self) -> Links:
        """See `Synchronization.links`; every process knows all of them."""
        traffic = self._ledger.traffic
        return Links(traffic.link_messages.copy(), traffic.link_bytes.copy())

    def shared_state(self) -> dict[str, Any]:
        """See `Synchronization.shared_state`; `settle` comes before it."""
        return {
            "model": self.model.state_dict(),
            "received": self.workers_here[0].received.state_dict(),
            "totals": self._ledger.totals.state_dict(),
            "traffic": self._ledger.traffic.state_dict(),
        }

    def own_state(self) -> dict[str, Any]:
        """See `Synchronization.own_state`."""
        states = {str(worker.rank): worker.state_dict() for worker in self.workers_here}
        return {"version": _STATE_VERSION, "workers": self.workers, "ranks": states}

    def load(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """See `Synchronization.load`."""
        if own.get("version") != _STATE_VERSION:
            raise ValueError(f"version {own.get('version')!r} of workers' states, not {_STATE_VERSION}")
        theirs, ours = [int(rank) for rank in own["ranks"]], list(self.ranks)
        if own["workers"] != self.workers or theirs != ours:
            raise ValueError(
                f"the states of ranks {theirs} of {own['workers']} workers, this process has ranks {ours} "
                f"of {self.workers}: each worker's residual belongs to its part of the data"
            )
        for worker in self.workers_here:
            worker.replica.model.load_state_dict(shared["model"])
            worker.load_state_dict(own["ranks"][str(worker.rank)], shared["received"])
        self._ledger.load(shared["totals"], shared["traffic"])
        self._drained = self.workers_here[0].steps
        self._mail.begin(self._drained)
