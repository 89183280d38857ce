"""The mode `async`: workers that send to all others and wait for nobody (Strom, 2.3 to 2.6)."""

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from taugrad.compressors.exchange.averaging import state_of_rank
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.worker_group import WorkerGroup
from taugrad.compressors.spans import RECORDER

from ...data.feeding import Batch
from ...replica.generators import Randomness
from ...tracking import names
from ..ledger import SHOWN_WORKERS, Iteration, Notes
from ..synchronization import StepContext, WorkerInLockstep
from .delivery import Delivery, Message, Schedule, SimulatedTiming
from .worker import AsyncWorker

_STATE_VERSION = 2
_NOTES = ("refused", "applied", "ages", "most")
"""The ordinal of the parameter that was not finite, plus 1; and of the messages applied before the step."""


class AsynchronousTraining(WorkerInLockstep):
    """A worker that waits for nobody. Between drains replicas differ: each has received other messages.

    An iteration consists of every worker's step with that number. Simulated workers may be at different
    steps, according to the schedule: a worker's batch waits until the messages before its step were sent.

    Attributes:
        worker: its replica, and what it has sent and received.
    """

    def __init__(
        self,
        group: WorkerGroup,
        worker: AsyncWorker,
        randomness: Randomness,
        *,
        most_behind: int,
        timing: SimulatedTiming | None,
    ) -> None:
        """Takes charge of a worker, whose model has the same weights as the others'.

        `most_behind` is how many steps a worker may be ahead of what it has received from any other one. A
        `timing` makes the schedule that workers follow; without it, they apply whatever has arrived.
        """
        super().__init__(group, sum(weight.numel() for weight in worker.replica.parameters), _NOTES)
        self.worker, self.model = worker, worker.replica.model
        self._timing, self._randomness = timing, randomness
        self._delivery = Delivery(group.carrier, most_behind=most_behind)
        self._waiting: deque[tuple[Batch, StepContext]] = deque()
        self._begin()

    def _begin(self) -> None:
        """All workers are drained, and go on from the same weights."""
        self._drained = self.worker.steps
        """Steps of each worker before the last drain."""
        schedule = None if self._timing is None else Schedule(self._timing, self._drained)
        self._delivery.begin(self._drained, schedule)

    def iteration(self, batch: Batch, context: StepContext) -> Coroutine[Iteration]:
        """See `Synchronization.iterate`. Before the drain, the loss is that of the steps made meanwhile."""
        iteration = self.ledger.begin(always_under_way=True)
        self._waiting.append((batch, context))
        losses = self._advance()
        yield None
        losses += self._advance()  # by what simulated workers have sent that come later in the turn
        iteration.loss = sum(losses) / len(losses) if losses else 0.0
        return iteration

    def _advance(self) -> list[float]:
        """Makes the steps that the worker can make; returns their losses."""
        losses = []
        while self._waiting and self._receive():
            losses.append(self._make_step())
        return losses

    def _receive(self) -> bool:
        """Applies what is due before the next step; False if simulated workers must make steps first."""
        with self.ledger.waiting():
            messages = self._delivery.receive(self.worker.steps)
        if messages is None:
            return False
        self._apply(messages, self.worker.steps - self._drained)
        return True

    def _apply(self, messages: Sequence[Message], number: int) -> None:
        began = perf_counter()
        self.worker.apply(messages, self.ledger.note(number))
        ended = perf_counter()
        self.ledger.now.step.decompress_s += ended - began
        RECORDER.add("decode", "compute", began, ended)

    def _make_step(self) -> float:
        worker, number = self.worker, self.worker.steps - self._drained
        batch, context = self._waiting.popleft()
        with self._randomness.of(self.rank):
            stepped = worker.step(batch, context.position, observe=context.observe and self.rank == 0)
        self._delivery.send(stepped.message)
        note, iteration = self.ledger.note(number), self.ledger.entry(number)
        note["loss"], note["squares"] = stepped.loss, worker.residual_squares()
        note["wire_bytes"] = stepped.message.nbytes
        note["received_bytes"] = (self.workers - 1) * stepped.message.nbytes
        note["messages"] = self.workers - 1
        note["sent"] = sum(tally.sent for tally in stepped.tallies)
        note["paper_bits"] = sum(tally.paper_bits for tally in stepped.tallies)
        note["refused"] = stepped.refused + 1
        iteration.statistics |= stepped.statistics
        iteration.step.keeps_residuals |= bool(worker.compressor.feedback.residuals)
        iteration.step.layers = stepped.tallies
        self.ledger.now.step.compress_s += stepped.compress_s
        self.ledger.now.step.decompress_s += stepped.decompress_s
        if stepped.refused >= 0 and worker.refuses:
            raise worker.nonfinite(stepped.refused, self.rank)
        return stepped.loss

    def agree(self) -> Coroutine[None]:
        """See `Synchronization.sync_model`: a drain. Everything that was sent is applied everywhere."""
        if not self.ledger.begun:
            return
        began, last, done = perf_counter(), self.ledger.now, self._drained + self.ledger.begun
        self._delivery.end(done)
        while self._waiting:
            self._advance()
            yield None
        while any(message < done for message in self.worker.received.messages):
            with self.ledger.waiting():
                messages = self._delivery.drain(done)
            if messages is None:
                yield None
            else:
                self._apply(messages, -1)
        yield lambda: None  # all have made all steps: buffers are worker 0's from here on
        with self.ledger.waiting():
            self._group.broadcast(self.worker.buffers())
        self.worker.show()
        with self.ledger.waiting():
            notes = yield from self.complete_ledger()
        if self.workers <= SHOWN_WORKERS:
            # By worker only from time to time: workers differ in speed, but hardly from step to step.
            for rank, note in enumerate(notes):
                if applied := note["applied"].sum():
                    staleness = float(note["ages"].sum() / applied)
                    last.metrics[names.worker_metric(rank, "staleness")] = staleness
        last.closing_s = perf_counter() - began
        self._begin()

    def _complete(self, iteration: Iteration, notes: Notes, own: np.void) -> None:
        iteration.loss, iteration.step.residual_squares = float(own["loss"]), float(own["squares"])
        for rank in notes["refused"].nonzero()[0].tolist():
            iteration.step.skip(self.worker.replica.names[int(notes["refused"][rank]) - 1], rank)
        traffic, others = self.ledger.traffic, self._group.carrier.others
        traffic.link_bytes[others] += int(own["wire_bytes"])
        traffic.link_messages[others] += 1
        if applied := notes["applied"].sum():
            iteration.metrics[names.COMM_STALENESS] = float(notes["ages"].sum() / applied)
            iteration.metrics[names.COMM_STALENESS_MOST] = float(notes["most"].max())

    def shared_state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "received": self.worker.received.state_dict(),
            "totals": self.ledger.totals.state_dict(),
        }

    def worker_state(self) -> dict[str, Any]:
        ranks = {str(self.rank): {**self.worker.state_dict(), "traffic": self.ledger.traffic.state_dict()}}
        return {"version": _STATE_VERSION, "workers": self.workers, "ranks": ranks}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        saved = state_of_rank(local_state, self.rank, self.workers, _STATE_VERSION)
        self.model.load_state_dict(shared["model"])
        self.worker.load_state_dict(saved, shared["received"])
        self.ledger.load(shared["totals"])
        self.ledger.traffic.load_state_dict(saved["traffic"])
        self._begin()
