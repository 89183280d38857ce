"""The mode `async`: workers that send to all others and wait for nobody (Strom, 2.3 to 2.6)."""

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from taugrad.compressors.exchange.averaging import require_same_ranks
from taugrad.compressors.exchange.runner import Runner
from taugrad.compressors.spans import RECORDER

from ...data.feeding import Batch
from ...replica.generators import Randomness
from ...tracking import names
from ..ledger import SHOWN_WORKERS, Iteration, Ledger, Links, Notes
from ..synchronization import StepContext, Synchronization
from .delivery import Delivery, Message, Schedule, SimulatedTiming
from .worker import AsyncWorker

_STATE_VERSION = 1
_NOTES = ("refused", "applied", "ages", "most")
"""The ordinal of the parameter that was not finite, plus 1; and of the messages applied before the step."""


class AsynchronousTraining(Synchronization):
    """A replica for each worker here. Between drains replicas differ: each has received other messages.

    An iteration consists of every worker's step with that number. Simulated workers may be at different
    steps, according to the schedule: a worker's batch waits until the messages before its step were sent.

    Attributes:
        workers_here: by rank, this process's.
        ledger: theirs.
    """

    def __init__(
        self,
        runner: Runner,
        workers: Sequence[AsyncWorker],
        randomness: Randomness,
        *,
        most_behind: int,
        timing: SimulatedTiming | None,
    ) -> None:
        """Takes charge of a worker for each of the runner's ranks, whose models have the same weights.

        `most_behind` is how many steps a worker may be ahead of what it has received from any other one. A
        `timing` makes the schedule that workers follow; without it, they apply whatever has arrived.
        """
        self.ranks, self.workers = runner.ranks, runner.workers
        self._runner, self._timing, self._randomness = runner, timing, randomness
        self._deliveries = [
            Delivery(carrier, most_behind=most_behind, waits=runner.waits) for carrier in runner.carriers
        ]
        self.workers_here = list(workers)
        self.model = workers[0].replica.model
        runner.broadcast([*self.model.parameters(), *self.model.buffers()])
        for worker in workers:
            worker.begin_from_model()
        self._names = workers[0].replica.names
        elements = sum(parameter.numel() for parameter in workers[0].replica.parameters)
        self.ledger = Ledger(runner.gather, len(workers), self.workers, elements, _NOTES)
        self._waiting: list[deque[tuple[Batch, StepContext]]] = [deque() for _ in workers]
        self._begin()

    def _begin(self) -> None:
        """All workers are drained, and go on from the same weights."""
        self._drained = self.workers_here[0].steps
        """Steps of each worker before the last drain."""
        schedule = None if self._timing is None else Schedule(self._timing, self._drained)
        for delivery in self._deliveries:
            delivery.begin(self._drained, schedule)

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        """See `Synchronization.iterate`. Before the drain, the loss is that of the steps made meanwhile."""
        iteration = self.ledger.begin(always_under_way=True)
        for waiting, batch in zip(self._waiting, batches, strict=True):
            waiting.append((batch, context))
        iteration.loss = self._advance()
        return iteration

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

    def _receive(self, local: int, worker: AsyncWorker) -> bool:
        """Applies what is due before a worker's next step; False if some of it has not been sent yet."""
        with self.ledger.waiting():
            messages = self._deliveries[local].receive(worker.steps)
        if messages is None:
            return False
        self._apply(local, worker, messages, worker.steps - self._drained)
        return True

    def _apply(self, local: int, worker: AsyncWorker, messages: Sequence[Message], number: int) -> None:
        began = perf_counter()
        worker.apply(messages, self.ledger.note(local, number))
        ended = perf_counter()
        self.ledger.now.step.decompress_s += (ended - began) / len(self.ranks)
        RECORDER.add("decode", "compute", began, ended)

    def _make_step(self, local: int, worker: AsyncWorker) -> float:
        batch, context = self._waiting[local].popleft()
        number = worker.steps - self._drained
        with self._randomness.of(worker.rank):
            stepped = worker.step(batch, context.position, observe=context.observe and worker.rank == 0)
        self._deliveries[local].send(stepped.message)
        note, iteration = self.ledger.note(local, number), self.ledger.entry(number)
        note["loss"], note["squares"] = stepped.loss, worker.residual_squares()
        note["wire_bytes"] = stepped.message.nbytes
        note["received_bytes"] = (self.workers - 1) * stepped.message.nbytes
        note["messages"] = self.workers - 1
        note["sent"] = sum(tally.sent for tally in stepped.tallies)
        note["paper_bits"] = sum(tally.paper_bits for tally in stepped.tallies)
        note["refused"] = stepped.refused + 1
        iteration.statistics |= stepped.statistics
        iteration.step.keeps_residuals |= bool(worker.compressor.feedback.residuals)
        if not local:
            iteration.step.layers = stepped.tallies
        self.ledger.now.step.compress_s += stepped.compress_s / len(self.ranks)
        self.ledger.now.step.decompress_s += stepped.decompress_s / len(self.ranks)
        if stepped.refused >= 0 and worker.refuses:
            raise worker.nonfinite(stepped.refused, worker.rank)
        return stepped.loss

    def sync_model(self) -> None:
        """See `Synchronization.sync_model`: a drain. Everything that was sent is applied everywhere."""
        if not self.ledger.begun:
            return
        began, done = perf_counter(), self._drained + self.ledger.begun
        for delivery in self._deliveries:
            delivery.end(done)
        self._advance()
        assert not any(self._waiting), "what a step waits for was sent before"
        for local, worker in enumerate(self.workers_here):
            while any(message < done for message in worker.received.messages):
                with self.ledger.waiting():
                    messages = self._deliveries[local].drain(done)
                assert messages is not None, "simulated workers have sent everything"
                self._apply(local, worker, messages, -1)
        last = self.ledger.now
        with self.ledger.waiting():
            self._agree()
        with self.ledger.waiting():
            notes = self.ledger.flush(self._complete)
        if self.workers <= SHOWN_WORKERS:
            # By worker only from time to time: workers differ in speed, but hardly from step to step.
            for rank, note in enumerate(notes):
                if applied := note["applied"].sum():
                    staleness = float(note["ages"].sum() / applied)
                    last.metrics[names.worker_metric(rank, "staleness")] = staleness
        last.closing_s = (perf_counter() - began) / len(self.ranks)
        self._begin()

    def _complete(self, iteration: Iteration, notes: Notes, here: Notes) -> None:
        iteration.loss = sum(here["loss"].tolist()) / len(here)
        iteration.step.residual_squares = sum(here["squares"].tolist()) / len(here)
        for rank in notes["refused"].nonzero()[0].tolist():
            iteration.step.skip(self._names[int(notes["refused"][rank]) - 1], rank)
        traffic = self.ledger.traffic
        for rank in range(self.workers):
            others = [other for other in range(self.workers) if other != rank]
            traffic.link_bytes[rank, others] += int(notes["wire_bytes"][rank])
            traffic.link_messages[rank, others] += 1
        if applied := notes["applied"].sum():
            iteration.metrics[names.COMM_STALENESS] = float(notes["ages"].sum() / applied)
            iteration.metrics[names.COMM_STALENESS_MOST] = float(notes["most"].max())

    @torch.no_grad()
    def _agree(self) -> None:
        """Puts the weights, which are the same on all workers, and worker 0's buffers into the model."""
        buffers = self.workers_here[0].buffers()
        self._runner.broadcast(buffers)
        for worker in self.workers_here:
            worker.show()
            for buffer, agreed in zip(worker.buffers(), buffers, strict=True):
                buffer.copy_(agreed)

    def links(self) -> Links:
        """See `Synchronization.links`; every process knows all of them."""
        traffic = self.ledger.traffic
        return Links(traffic.link_messages.copy(), traffic.link_bytes.copy())

    def shared_state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "received": self.workers_here[0].received.state_dict(),
            "totals": self.ledger.totals.state_dict(),
            "traffic": self.ledger.traffic.state_dict(),
        }

    def worker_state(self) -> dict[str, Any]:
        states = {str(worker.rank): worker.state_dict() for worker in self.workers_here}
        return {"version": _STATE_VERSION, "workers": self.workers, "ranks": states}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        require_same_ranks(local_state, self.ranks, self.workers, _STATE_VERSION)
        for worker in self.workers_here:
            worker.replica.model.load_state_dict(shared["model"])
            worker.load_state_dict(local_state["ranks"][str(worker.rank)], shared["received"])
        self.ledger.load(shared["totals"])
        self.ledger.traffic.load_state_dict(shared["traffic"])
        self._begin()
