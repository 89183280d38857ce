"""The mode `async`: workers that send to all others and wait for nobody (Strom, 2.3 to 2.6)."""

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.averaging import state_of_rank
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.patterns.base import as_messages
from taugrad.compressors.exchange.worker_group import WorkerGroup
from taugrad.compressors.ops import ops_for
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import NonFinite

from ...data.feeding import Batch
from ...replica.generators import Randomness
from ...replica.optimizer import penalized
from ...replica.rates import Rate, rate_at
from ...replica.replica import Replica
from ...spec import RunSpec
from ...spec.synchronization import AsyncSync
from ...tracking import names
from ..ledger import SHOWN_WORKERS, Iteration, Notes
from ..synchronization import StepContext, WorkerInLockstep
from .accumulator import Accumulator
from .delivery import Delivery, Message, Schedule

_STATE_VERSION = 2
_NOTES = ("refused", "applied", "ages", "most")
"""The ordinal of the parameter that was not finite, plus 1; and of the messages applied before the step: how
many, the sum of their ages, and the largest age.

The age of a message is the number of updates, by any workers, that were in the receiver's weights but not in
the weights at which the sender computed its gradient."""


class AsynchronousTraining(WorkerInLockstep):
    """A worker that waits for nobody. Between drains replicas differ: each has received other messages.

    An iteration consists of every worker's step with that number. Simulated workers may be at different
    steps, according to the schedule: a worker's batch waits until the messages before its step were sent.

    Attributes:
        replica: its model; `_show` brings the model's weights up to date.
        received: its weights, as sums of what was received.
        compressor: the compressor, with what the worker has not sent yet.
    """

    def __init__(
        self, group: WorkerGroup, spec: RunSpec, mode: AsyncSync, replica: Replica, randomness: Randomness
    ) -> None:
        """Takes charge of a worker, whose model has the same weights as the others'."""
        super().__init__(group, sum(weight.numel() for weight in replica.parameters), _NOTES)
        self.replica, self.model, self._randomness = replica, replica.model, randomness
        self._mode, self._training, method = mode, spec.training, spec.compressor
        self._follows = spec.sync.is_simulated or mode.follow_schedule
        self._penalized = penalized(replica.names, spec.training)
        self._share = self.workers if method.reduction == "mean" else 1
        self._refuses = method.nonfinite == "refuse"
        config, weights = as_messages(method), replica.weights()
        shard = Shard.whole(dict(zip(replica.names, map(Tensor.numel, weights), strict=True)))
        hold_back_zeros = spec.training.find_unused_parameters
        worker = Worker(ops_for(weights[0].device), self.rank, self.workers, hold_back_zeros)
        self.compressor = Compressor(config, worker, shard)
        # Sums are kept in the CPU's memory, even if the model is on a GPU.
        self._reader = Compressor(config, Worker(ops_for(torch.device("cpu"))), shard)
        start = torch.cat([weight.float().cpu() for weight in weights]).numpy()
        self.received = Accumulator(start, self.workers)
        self._shown = False
        self._show()
        self._delivery = Delivery(group.carrier, most_behind=mode.most_behind)
        self._waiting: deque[tuple[Batch, StepContext]] = deque()
        self._begin()

    def _begin(self) -> None:
        """All workers are drained, and go on from the same weights."""
        self._drained = self._steps
        """Steps of each worker before the last drain."""
        schedule = Schedule(self._mode, self.workers, self._drained) if self._follows else None
        self._delivery.begin(self._drained, schedule)

    @property
    def _steps(self) -> int:
        """Its own, in the whole run."""
        return self.received.messages[self.rank]

    @torch.no_grad()
    def _show(self) -> None:
        """Puts the weights into the model."""
        if self._shown:
            return
        sizes = [parameter.numel() for parameter in self.replica.parameters]
        weights = torch.split(torch.from_numpy(self.received.weights()), sizes)
        for parameter, weight in zip(self.replica.parameters, weights, strict=True):
            parameter.copy_(weight.view_as(parameter))
        self._shown = True

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
        while self._waiting:
            with self.ledger.waiting():
                messages = self._delivery.receive(self._steps)
            if messages is None:  # simulated workers must make steps first
                break
            self._apply(messages, self._steps - self._drained)
            losses.append(self._make_step())
        return losses

    def _apply(self, messages: Sequence[Message], number: int) -> None:
        """Adds what others sent, and notes that for an iteration.

        Raises NonFiniteGradient: a sender's gradient was not finite, and the method refuses that;
        CorruptMessage: the bytes are not a valid message.
        """
        began, note = perf_counter(), self.ledger.note(number)
        for message in messages:
            pairs = zip(self.received.messages, message.known, strict=True)
            age = sum(max(0, here - there) for here, there in pairs)
            note["applied"] += 1
            note["ages"] += age
            note["most"] = max(note["most"], age)
            self._add(message)
        ended = perf_counter()
        self.ledger.now.step.decompress_s += ended - began
        RECORDER.add("decode", "compute", began, ended)

    def _make_step(self) -> float:
        """Computes a gradient, and applies at once what is sent of it; returns the loss."""
        number = self._steps - self._drained
        note, iteration, now = self.ledger.note(number), self.ledger.entry(number), self.ledger.now.step
        batch, context = self._waiting.popleft()
        rate = rate_at(self._training, context.position, self.workers)
        with self._randomness.of(self.rank):
            self._show()
            loss = self.replica.backward(batch)
            self.replica.prepare_own()
            if context.observe and self.rank == 0:
                iteration.statistics |= self.replica.statistics()
            gradients = self._gradients(rate)
            began = perf_counter()
            sent = self.compressor.compress(gradients, self._steps)
            self.compressor.commit()
            done = perf_counter()
        known, tallies = tuple(self.received.messages), list(sent.tallies)
        message = Message(self.rank, self._steps, -rate.lr / self._share, known, sent.payload)
        self._delivery.send(message)
        note["loss"] = loss
        note["squares"] = self.compressor.feedback.residual_squares(self.compressor.ops)
        note["wire_bytes"] = message.nbytes
        note["received_bytes"] = (self.workers - 1) * message.nbytes
        note["messages"] = self.workers - 1
        note["sent"] = sum(tally.sent for tally in tallies)
        note["paper_bits"] = sum(tally.paper_bits for tally in tallies)
        iteration.step.keeps_residuals |= bool(self.compressor.feedback.residuals)
        iteration.step.layers = tallies
        adding = perf_counter()
        note["refused"] = self._add(message) + 1
        ended = perf_counter()
        now.compress_s += done - began
        now.decompress_s += ended - adding
        RECORDER.add("compress", "compute", began, done)
        RECORDER.add("decode", "compute", adding, ended)
        return loss

    def _gradients(self, rate: Rate) -> list[Tensor]:
        """The worker's own, with those of weight decay and l1, which no optimizer adds."""
        gradients, weights = self.replica.take_gradients(), self.replica.weights()
        if rate.weight_decay:
            # Only a part of the gradient: no worker has the sum that an optimizer needs.
            torch._foreach_add_(gradients, weights, alpha=rate.weight_decay)
        for gradient, weight, has_l1 in zip(gradients, weights, self._penalized, strict=True):
            if has_l1:
                gradient.add_(weight.sign(), alpha=rate.l1)
        return gradients

    def _add(self, message: Message) -> int:
        """Adds an update, a worker's own as the others will (dead reckoning).

        Returns the ordinal of the parameter that was not finite, for which nothing is added; -1: all were.
        """
        try:
            incoming = self._reader.read(message.payload)
        except CorruptMessage as reason:
            raise CorruptMessage(f"the message of worker {message.sender}: {reason}") from None
        refused = incoming.ordinal if isinstance(incoming, NonFinite) else -1
        if refused >= len(self.replica.names):
            raise CorruptMessage(f"the message of worker {message.sender}: a refusal of parameter {refused}")
        self.received.add(message.sender, [] if isinstance(incoming, NonFinite) else incoming, message.factor)
        self._shown = False
        if refused >= 0 and self._refuses:
            raise NonFiniteGradient(self.replica.names[refused], message.sender)
        return refused

    def agree(self) -> Coroutine[None]:
        """See `Synchronization.sync_model`: a drain. Everything that was sent is applied everywhere."""
        if not self.ledger.begun:
            return
        began, last, done = perf_counter(), self.ledger.now, self._drained + self.ledger.begun
        self._delivery.end(done)
        while self._waiting:
            self._advance()
            yield None
        while any(message < done for message in self.received.messages):
            with self.ledger.waiting():
                messages = self._delivery.receive(done, drains=True)
            if messages is None:
                yield None
            else:
                self._apply(messages, -1)
        yield lambda: None  # all have made all steps: buffers are worker 0's from here on
        with self.ledger.waiting():
            self._group.broadcast(list(self.model.buffers()))
        self._show()
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
            iteration.step.skip(self.replica.names[int(notes["refused"][rank]) - 1], rank)
        traffic, others = self.ledger.traffic, self._group.carrier.others
        traffic.link_bytes[others] += int(own["wire_bytes"])
        traffic.link_messages[others] += 1
        if applied := notes["applied"].sum():
            iteration.metrics[names.COMM_STALENESS] = float(notes["ages"].sum() / applied)
            iteration.metrics[names.COMM_STALENESS_MOST] = float(notes["most"].max())

    def shared_state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "received": self.received.state_dict(),
            "totals": self.ledger.totals.state_dict(),
        }

    def worker_state(self) -> dict[str, Any]:
        """See `Synchronization.worker_state`: what is left once all workers are drained."""
        state = {
            "compressor": self.compressor.feedback.state_dict(),
            "traffic": self.ledger.traffic.state_dict(),
        }
        return {"version": _STATE_VERSION, "workers": self.workers, "ranks": {str(self.rank): state}}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        saved = state_of_rank(local_state, self.rank, self.workers, _STATE_VERSION)
        self.model.load_state_dict(shared["model"])
        like = dict(zip(self.replica.names, self.replica.weights(), strict=True))
        self.compressor.feedback.load_state_dict(saved["compressor"], like)
        self.received.load_state_dict(shared["received"])
        self._shown = False
        self._show()
        self.ledger.load(shared["totals"])
        self.ledger.traffic.load_state_dict(saved["traffic"])
        self._begin()
