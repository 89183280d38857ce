"""The mode `weights` with a quorum: what a worker does, however it is decided which rounds it is in."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors import NonFiniteWeight
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.carrier import Payload
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.patterns.allgather import AllGather
from taugrad.compressors.exchange.patterns.base import ExchangeRecord
from taugrad.compressors.exchange.tensors import copy_bytes, copy_into, to_bytes

from ...data.feeding import Batch
from ...spec.synchronization import WeightsSync
from ...tracking import names
from ..ledger import SHOWN_WORKERS, Iteration, Notes
from ..synchronization import StepContext
from ..weights import LocalTraining, LocalWorker


@dataclass
class Member:
    """The state of a worker in addition to its model and its residuals."""

    pending: list[Tensor] | None = None
    """For each parameter, flat [numel]: what it has learned in rounds that closed without it. While there is
    any, it takes no steps, so that it is in time for the next round."""
    moved: bool = False
    """Whether it has taken a step since it last continued from the agreed weights."""
    offered: list[Tensor] | None = None
    """Likewise: what it has handed in for a round that is not decided yet."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the pattern had not sent before that was compressed."""
    knows: int = 0
    """How many rounds are in the weights from which it continues."""


class QuorumTraining(LocalTraining):
    """Local training in which some workers may be left out of a round.

    Iteration n is in round n // every. A worker that was left out keeps what it has learned, continues from
    what the others agreed on, and hands in its update in the next round for which it is in time.
    """

    notes = (
        *("caught_up_bytes", "left_out", "member", "lost", "weight", "lost_sum", "lost_squares"),
        *LocalTraining.notes,
    )
    """Bytes of agreed weights that the worker took over; whether a round closed without it, or with it;
    whether it was lost; the weight of the part of the batch that it learned from; sum and sum of squares of
    what a lost worker had not sent."""

    def __init__(self, sync: WeightsSync, worker: LocalWorker) -> None:
        """Takes charge of a worker."""
        super().__init__(sync, worker)
        (self._fragment,) = self.local.fragments
        self._pattern, self._member = self._fragment.pattern, Member()
        self._fresh = deepcopy(self._replica.state_dict()), deepcopy(self._pattern.feedback.state_dict())
        """The state of a new worker."""
        self._buffers = [buffer for buffer in self.model.buffers() if buffer.numel()]
        self._agreed = [*self._fragment.agreed, *self._buffers, *self._fragment.momentum]
        """The agreed weights of this process, with buffers and the outer optimizer's momentum."""
        self.lost_sum = 0.0
        """The sum of all elements that lost workers had not sent."""
        self._iterations = 0
        self._ended = 0
        """Rounds that have ended before the next iteration."""

    # An iteration.

    def iteration(self, batch: Batch, context: StepContext) -> Coroutine[Iteration]:
        """See `Synchronization.iterate`. The loss is that of a step that the worker took."""
        iteration = self.ledger.begin(always_under_way=True)
        number, step = divmod(self._iterations, self._sync.every)
        self._empty_model()
        yield from self._prepare(number, step)
        note = self.ledger.note()
        if batch.weight and self._trains(number, step):
            note["loss"] = batch.weight * self._learn(batch, context)
            note["weight"], self._member.moved = batch.weight, True
            iteration.loss = float(note["loss"]) / batch.weight
        self._iterations += 1
        if step + 1 == self._sync.every or context.last:
            yield from self._close(number, step)
            self._ended = number + 1
            note["squares"] = self._pattern.residual_squares()
            iteration.step.keeps_residuals = self._pattern.feedback.keeps_residuals
        return iteration

    @abstractmethod
    def _prepare(self, number: int, step: int) -> Coroutine[None]:
        """Whatever comes before a step of a round."""

    @abstractmethod
    def _trains(self, number: int, step: int) -> bool:
        """Whether the worker takes a step of a round."""

    @abstractmethod
    def _close(self, number: int, step: int) -> Coroutine[None]:
        """Called after the last step of a round."""

    # What a worker sends.

    def _send(self, receivers: Collection[int], tag: str, payload: Payload) -> None:
        """Sends to others, and counts for them what will arrive."""
        nbytes, note, traffic = payload.size, self.ledger.note(), self.ledger.traffic
        for receiver in receivers:
            traffic.link_bytes[receiver] += nbytes
            traffic.link_messages[receiver] += 1
            self._group.carrier.send(receiver, tag, payload)
        note["wire_bytes"] += nbytes if receivers else 0
        note["received_bytes"] += nbytes * len(receivers)
        note["messages"] += len(receivers)

    def _offer(self, number: int, *, may_fail: bool) -> Payload:
        """The worker's message for a round, of which it may still be left out: the payload, then buffers."""
        update, pattern = self._update(), self._pattern
        kept = deepcopy(pattern.feedback.state_dict()) if may_fail else {}
        began = perf_counter()
        assert isinstance(pattern, AllGather)
        record = ExchangeRecord(Traffic(self.workers), number, weights=self._fragment.agreed_by_name)
        outgoing = pattern.offer([tensor.clone() for tensor in update], record)
        step, note = self.ledger.now.step, self.ledger.note()
        step.compress_s += perf_counter() - began
        note["sent"], note["paper_bits"] = record.traffic.sums.sent, record.traffic.sums.paper_bits
        step.layers = list(outgoing.tallies)
        buffers = [buffer for buffer in self._replica.model.buffers() if buffer.numel()]
        self._member.offered, self._member.kept = update, kept
        return np.concatenate([outgoing.payload, to_bytes(buffers)])

    @torch.no_grad()
    def _update(self) -> list[Tensor]:
        """What the worker has learned and not handed in, flat [numel] for each parameter."""
        update, pending = self._fragment.pseudo_gradient(), self._member.pending
        if pending is None:
            return update
        return [moved + kept for moved, kept in zip(update, pending, strict=True)]

    def _accepted(self) -> None:
        """Called if the worker's offer is in the round."""
        self._pattern.commit()
        self._member = Member(knows=self._member.knows)

    def _set_aside(self) -> None:
        """Called if the worker was left out: keeps what it has learned."""
        member = self._member
        if member.offered is not None:
            self._pattern.load_state_dict(member.kept)
            pending = member.offered
        elif member.moved:
            pending = self._update()
        else:
            return
        self._member = Member(pending, knows=member.knows)
        self._continue()

    def _lose(self) -> None:
        """Called if the worker is lost, with everything that it had not sent; a new one takes its place."""
        member, note = self._member, self.ledger.note()
        lost = self._pattern.unsent()
        if member.moved or member.pending is not None:
            lost = [kept + update for kept, update in zip(lost, self._update(), strict=True)]
        whole = [tensor.double() for tensor in lost]
        note["lost"] = 1
        note["lost_sum"] = sum(float(tensor.sum()) for tensor in whole)
        note["lost_squares"] = sum(float(tensor.square().sum()) for tensor in whole)
        replica, pattern = self._fresh
        self._replica.load_state_dict(deepcopy(replica))
        self._pattern.load_state_dict(deepcopy(pattern))
        self._member = Member(knows=member.knows)
        self._continue()

    # What all agree on.

    def _apply_round(self, bodies: Mapping[int, Payload]) -> None:
        """Applies the mean of what a round's members have sent: the bodies of their offers.

        Raises NonFiniteWeight: on every worker, where a member's update is not finite; CorruptMessage: an
        offer is damaged or does not fit.
        """
        began = perf_counter()
        nbytes = sum(buffer.nbytes for buffer in self._buffers)
        payloads = {rank: body[: body.size - nbytes] for rank, body in sorted(bodies.items())}
        for refusal in self._pattern.refusals(payloads):
            raise NonFiniteWeight(self._replica.names[refusal.ordinal], refusal.rank)
        self._fragment.apply(self._pattern.assemble(payloads))
        lowest = bodies[min(bodies)]
        copy_bytes(lowest[lowest.size - nbytes :], self._buffers)
        self.ledger.now.step.decompress_s += perf_counter() - began

    def _take_over(self, data: Payload, rounds: int) -> None:
        """Lets the worker continue from another one's agreed weights, which have so many rounds, as bytes.

        Raises CorruptMessage: they do not fit.
        """
        copy_bytes(data, self._agreed)
        self.ledger.note()["caught_up_bytes"] += data.size
        self._go_on_knowing(rounds)

    def _go_on_knowing(self, rounds: int) -> None:
        """Lets the worker continue from the agreed weights, which have so many rounds."""
        self._member.knows = self._fragment.averaging.done = rounds
        self._continue()

    def _continue(self) -> None:
        """Lets the worker continue from the agreed weights."""
        self._fragment.load_base()
        copy_into(list(self._replica.model.buffers()), list(self.model.buffers()))

    # What all do together.

    def agree(self) -> Coroutine[None]:
        """See `Synchronization.sync_model`: all end their rounds, and those that were absent catch up."""
        if not self.ledger.begun:
            return
        began, last = perf_counter(), self.ledger.now
        yield from self._finish_rounds()
        yield self._fill_model
        with self.ledger.waiting():
            notes = yield from self.complete_ledger()
        if self.workers <= SHOWN_WORKERS:
            for rank, note in enumerate(notes):
                last.metrics[names.worker_metric(rank, "left_out")] = float(note["left_out"].sum())
        last.closing_s = perf_counter() - began

    @abstractmethod
    def _finish_rounds(self) -> Coroutine[None]:
        """Waits until all workers have ended the same rounds."""

    def _complete(self, iteration: Iteration, notes: Notes, own: np.void) -> None:
        super()._complete(iteration, notes, own)
        # In rank order, on every process.
        loss, weight = sum(notes["loss"].tolist()), sum(notes["weight"].tolist())
        iteration.step.residual_squares = float(own["squares"])
        self.lost_sum += sum(notes["lost_sum"].tolist())
        iteration.loss = loss / weight if weight else 0.0
        metrics = iteration.metrics
        if notes["member"].any():
            metrics[names.ROUND_MEMBERS] = float(notes["member"].sum())
            metrics[names.ROUND_LEFT_OUT] = float(notes["left_out"].sum())
        if notes["caught_up_bytes"].any():
            metrics[names.ROUND_CAUGHT_UP_BYTES] = float(notes["caught_up_bytes"].sum())
        if notes["lost"].any():
            elements = iteration.step.elements / self.workers
            metrics[names.ROUND_LOST] = float(notes["lost"].sum())
            metrics[names.ROUND_LOST_RMS] = float((sum(notes["lost_squares"].tolist()) / elements) ** 0.5)

    # States.

    def shared_state(self) -> dict[str, Any]:
        return {
            **super().shared_state(),
            "iterations": self._iterations,
            "ended": self._ended,
            "lost_sum": self.lost_sum,
        }

    def worker_state(self) -> dict[str, Any]:
        state, member = super().worker_state(), self._member
        pending, rank = member.pending, str(self.rank)
        if member.offered is not None:  # a resumed worker offers it again
            pending = member.offered
            state["local"]["fragments"][0]["unsent"]["ranks"][rank] = member.kept
        state["replicas"][rank] |= {"pending": pending, "moved": member.moved}
        return state

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        super()._load_agreed(shared)
        self._iterations, self._ended = int(shared["iterations"]), int(shared["ended"])
        self.lost_sum = float(shared["lost_sum"])

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        super().load(shared, local_state)
        saved = local_state["replicas"][str(self.rank)]
        pending, like = saved["pending"], self.local.agreed.weights
        if pending is not None:
            pending = [tensor.to(weight.device) for tensor, weight in zip(pending, like, strict=True)]
        self._member = Member(pending, bool(saved["moved"]), knows=self._ended)
        self._begin_anew()

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`. What waits is a part of how far a worker has moved."""
        super().reshard(shared, workers)
        self._member = Member(moved=True, knows=self._ended)
        self._begin_anew()

    @abstractmethod
    def _begin_anew(self) -> None:
        """All workers go on from a checkpoint: every one of them is there."""
