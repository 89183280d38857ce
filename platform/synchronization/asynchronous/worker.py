"""One worker of the mode `async`: its own steps, and the updates of others that have arrived (Strom, 2.3)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.patterns.base import as_messages
from taugrad.compressors.methods import Method
from taugrad.compressors.observe import GradientStatistics
from taugrad.compressors.ops import ops_for
from taugrad.compressors.ops.parts import PartTally
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import NonFinite

from ...data.batch_plan import Position
from ...data.feeding import Batch
from ...replica.optimizer import penalized
from ...replica.rates import rate_at
from ...replica.replica import Replica
from ...spec.training import TrainingConfig
from .accumulator import Accumulator
from .delivery import Message


@dataclass
class Stepped:
    """The result of a worker's own step."""

    message: Message
    loss: float
    tallies: list[PartTally]
    compress_s: float
    decompress_s: float
    refused: int = -1
    """If the step is skipped, the ordinal of the parameter that was not finite; otherwise -1."""
    statistics: dict[str, GradientStatistics] = field(default_factory=dict)


class AsyncWorker:
    """A replica of the model, what it has received, and what it has not sent yet.

    Attributes:
        rank: the worker's.
        replica: its model; `show` brings the model's weights up to date.
        received: its weights, as sums of what was received.
        compressor: the compressor, with the residuals.
        refuses: whether a gradient that is not finite ends the run.
    """

    def __init__(
        self,
        replica: Replica,
        method: Method,
        training: TrainingConfig,
        rank: int,
        workers: int,
        *,
        hold_back_zeros: bool,
    ) -> None:
        self.rank, self.replica = rank, replica
        self._training, self._workers = training, workers
        self._penalized = penalized(replica.names, training)
        self._share = workers if method.reduction == "mean" else 1
        self.refuses = method.nonfinite == "refuse"
        config, weights = as_messages(method), replica.weights()
        shard = Shard.whole(dict(zip(replica.names, map(Tensor.numel, weights), strict=True)))
        worker = Worker(ops_for(weights[0].device), rank, workers, hold_back_zeros)
        self.compressor = Compressor(config, worker, shard)
        # Sums are kept in the CPU's memory, even if the model is on a GPU.
        self._reader = Compressor(config, Worker(ops_for(torch.device("cpu"))), shard)
        self.received = Accumulator(np.zeros(0, np.float32), workers)
        self.begin_from_model()

    def begin_from_model(self) -> None:
        """Starts from the model's weights, which are the same on all workers."""
        start = torch.cat([weight.float().cpu() for weight in self.replica.weights()]).numpy()
        self.received = Accumulator(start, self._workers)
        self._shown = False
        self.show()

    @property
    def steps(self) -> int:
        """Its own, in the whole run."""
        return self.received.messages[self.rank]

    @torch.no_grad()
    def show(self) -> None:
        """Puts the weights into the model."""
        if self._shown:
            return
        sizes = [parameter.numel() for parameter in self.replica.parameters]
        weights = torch.split(torch.from_numpy(self.received.weights()), sizes)
        for parameter, weight in zip(self.replica.parameters, weights, strict=True):
            parameter.copy_(weight.view_as(parameter))
        self._shown = True

    def apply(self, messages: Sequence[Message], note: np.void) -> None:
        """Adds what others sent, and notes how many messages, the sum of their ages, and the largest age.

        The age of a message is the number of updates, by any workers, that were in the receiver's weights but
        not in the weights at which the sender computed its gradient. Raises NonFiniteGradient: a sender's
        gradient was not finite, and the method refuses that; CorruptMessage: the bytes are not a valid
        message.
        """
        for message in messages:
            pairs = zip(self.received.messages, message.known, strict=True)
            age = sum(max(0, here - there) for here, there in pairs)
            note["applied"] += 1
            note["ages"] += age
            note["most"] = max(note["most"], age)
            refused = self._add(message)
            if refused >= 0 and self.refuses:
                raise self.nonfinite(refused, message.sender)

    def step(self, batch: Batch, position: Position, *, observe: bool) -> Stepped:
        """Computes a gradient, whose statistics it may note, and applies at once what is sent of it."""
        self.show()
        loss = self.replica.backward(batch)
        self.replica.prepare_own()
        statistics = self.replica.statistics() if observe else {}
        gradients = self.replica.take_gradients()
        rate = rate_at(self._training, position, self._workers)
        if rate.weight_decay:
            # Only a part of the gradient: no worker has the sum that an optimizer needs.
            torch._foreach_add_(gradients, self.replica.weights(), alpha=rate.weight_decay)
        weights = self.replica.weights()
        for gradient, weight, has_l1 in zip(gradients, weights, self._penalized, strict=True):
            if has_l1:
                gradient.add_(weight.sign(), alpha=rate.l1)
        began = perf_counter()
        sent = self.compressor.compress(gradients, self.steps)
        self.compressor.commit()
        done = perf_counter()
        message = Message(
            self.rank, self.steps, -rate.lr / self._share, tuple(self.received.messages), sent.payload
        )
        refused = self._add(message)
        ended = perf_counter()
        RECORDER.add("compress", "compute", began, done)
        RECORDER.add("decode", "compute", done, ended)
        return Stepped(message, loss, list(sent.tallies), done - began, ended - done, refused, statistics)

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
        return refused

    def nonfinite(self, ordinal: int, rank: int) -> NonFiniteGradient:
        """The error that says which parameter of which worker was not finite."""
        return NonFiniteGradient(self.replica.names[ordinal], rank)

    def residual_squares(self) -> float:
        """Sum of squares of what the worker has not sent."""
        return self.compressor.feedback.residual_squares(self.compressor.ops)

    def buffers(self) -> list[Tensor]:
        """The model's, such as batch-norm statistics."""
        return list(self.replica.model.buffers())

    def state_dict(self) -> dict[str, Any]:
        """The state that only this worker has, once all workers are drained."""
        return {"compressor": self.compressor.feedback.state_dict()}

    def load_state_dict(self, state: dict[str, Any], agreed: dict[str, Any]) -> None:
        """Restores what `state_dict` returned, and the weights of all workers."""
        like = dict(zip(self.replica.names, self.replica.weights(), strict=True))
        self.compressor.feedback.load_state_dict(state["compressor"], like)
        self.received.load_state_dict(agreed)
        self._shown = False
        self.show()
