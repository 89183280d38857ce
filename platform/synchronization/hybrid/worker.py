"""One worker's iteration: convolutions on its own examples, fully connected layers on those of all."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate, count

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from taugrad.compressors.exchange.carrier import Payload
from taugrad.compressors.exchange.traffic import NUMBER_BYTES
from taugrad.compressors.spans import RECORDER

from ...data.feeding import Batch
from ...tasks.base import Task
from ...training.batch_plan import Position
from ...training.config import TrainingConfig
from ...training.optimizer import build_optimizer
from ...training.precision import autocast
from ...training.rates import rate_at, set_rate
from .dropout import Examples
from .fully_connected import FullyConnected, added
from .layers import share_of
from .moves import Moves, Post, fetched
from .parts import Parts
from .turns import Scheme, Turn, turns_of
from .wire import Wire, nothing, packed, unpacked


@dataclass(frozen=True)
class Manner:
    """What all workers of a run have in common."""

    scheme: Scheme
    wire: Wire
    per_worker: bool
    """Whether the fully connected layers take a step after each turn, instead of one after all turns."""
    summed: bool
    """Whether the workers' gradients are added, not averaged (`compressor.reduction: sum`)."""
    seed: int
    """Of dropout."""


@dataclass(frozen=True)
class Computed:
    """The result of one worker's iteration."""

    loss: float
    """The mean loss of the whole batch, the same on every worker."""
    features: Tensor | None
    """Features of its own examples [n, features], with their autograd graph; None without examples."""
    gradient: Tensor
    """[n, features], the gradient of the worker's own weighted loss with respect to the features."""
    buffers: list[Tensor]
    """Buffers of the convolutional part after its own examples."""
    refused: int | None
    """The ordinal of the first parameter of its layers with a gradient that was not finite, if any."""


class Worker:
    """One worker. The convolutional part may be shared by workers of one process: they are replicas.

    Attributes:
        layers: its share of the fully connected ones.
        optimizer: theirs.
    """

    def __init__(
        self, parts: Parts, task: Task, training: TrainingConfig, manner: Manner, rank: int, workers: int
    ) -> None:
        self.rank, self.workers = rank, workers
        self._convolutional, self._manner, self._training = parts.convolutional, manner, training
        self._task = task
        self.layers = share_of(parts.fully_connected, rank, workers)
        self.optimizer = build_optimizer(training.optimizer, self.layers.parameters())
        device = next(parts.convolutional.parameters()).device

        def arithmetic() -> AbstractContextManager[object]:
            return autocast(training.precision, device)

        self._autocast = arithmetic
        self._refused: int | None = None
        self._fully_connected = FullyConnected(self.layers, task, manner.wire, rank, arithmetic)

    def iterate(
        self,
        batch: Batch,
        position: Position,
        alone: Callable[[], AbstractContextManager[None]],
    ) -> Moves[Computed]:
        """Computes everything up to the gradient with respect to the worker's own features.

        Args:
            batch: the worker's part of the batch.
            position: in the run.
            alone: a context that is entered where random numbers of this worker are drawn.

        Raises:
            CorruptMessage: what arrived has a wrong length.
        """
        channels = count()
        own = len(batch) if batch.weight else 0
        counting = next(channels)
        yield self._to_all(counting, "counts", packed(torch.tensor([own])), [NUMBER_BYTES] * self.workers)
        buffers = [(name, each.clone()) for name, each in self._convolutional.named_buffers()]
        features: Tensor | None = None
        if own:
            with RECORDER.computing("forward", "conv"), alone(), self._autocast():
                features = functional_call(self._convolutional, dict(buffers), (batch.inputs,))
        received = yield from fetched(counting)
        counts = [
            own if rank == self.rank else int(unpacked(received[rank], (1,), torch.int64))
            for rank in range(self.workers)
        ]
        targets = yield from self._all_targets(batch.targets[:own], counts, next(channels))
        like = next(self.layers.parameters())
        width = self._fully_connected.layers[0].inputs
        mine = like.new_zeros(0, width) if features is None else features.detach().to(like.dtype)
        self._refused = None
        loss, gradient = yield from self._turns(mine, targets, counts, position, channels)
        self._look_at_gradients()
        return Computed(loss, features, gradient, [each for _, each in buffers], self._refused)

    def step(self, position: Position) -> None:
        """Applies the gradients of the worker's layers, and drops them.

        If each turn is a batch of its own, learning rate and decay are those of such a batch (section 5).
        """
        if self._manner.per_worker:
            position = replace(position, batch_size=-(-position.batch_size // self.workers))
        with RECORDER.computing("optimizer", "fc"):
            together = 1 if self._manner.per_worker else self.workers
            set_rate(self.optimizer, rate_at(self._training, position, together))
            self.optimizer.step()
            self.forget()

    def forget(self) -> None:
        """Drops the gradients of its layers."""
        self.optimizer.zero_grad()

    def _look_at_gradients(self) -> None:
        """Notes the first parameter whose gradient holds NaN or Inf."""
        for ordinal, each in enumerate(self.layers.parameters()):
            if self._refused is None and each.grad is not None and not _is_finite(each.grad):
                self._refused = ordinal

    def _turns(
        self,
        mine: Tensor,
        targets: Sequence[Tensor],
        counts: Sequence[int],
        position: Position,
        channels: Iterator[int],
    ) -> Moves[tuple[float, Tensor]]:
        """All turns: the batch's loss, and the gradient with respect to this worker's features.

        While one turn is computed, the features of the next and the gradients of the last one are under way.
        """
        turns, whole = turns_of(self._manner.scheme, counts), sum(counts)
        firsts = list(accumulate(counts, initial=0))  # of each worker's examples in the whole batch
        gradient = torch.zeros_like(mine)
        loss = 0.0
        returning: tuple[Turn, int, Tensor, float] | None = None
        arriving = next(channels)
        yield self._features_of(turns[0], mine, arriving)
        for number, turn in enumerate(turns):
            fetched, following = arriving, turns[number + 1 : number + 2]
            if following:
                arriving = next(channels)
                yield self._features_of(following[0], mine, arriving)
            features = yield from self._assembled(turn, mine, fetched)
            wanted = torch.cat([own[rows.start : rows.stop] for own, rows in zip(targets, turn, strict=True)])
            places = [
                first + np.arange(rows.start, rows.stop) for first, rows in zip(firsts, turn, strict=False)
            ]
            examples = Examples(
                self._manner.seed,
                position.done,
                torch.from_numpy(np.concatenate(places)).to(mine.device),
            )
            factor, back = self._factors(turn, wanted, whole)
            mean, part = yield from self._fully_connected.learn(features, wanted, examples, factor, channels)
            loss += _examples(turn) / whole * mean
            if self._manner.per_worker:
                self._look_at_gradients()
                self.step(position)
            if returning is not None:
                yield from self._returned(*returning, gradient)
            returning = turn, next(channels), part, back
            yield self._gradients_of(turn, part, returning[1])
        assert returning is not None
        yield from self._returned(*returning, gradient)
        return loss, gradient

    def _factors(self, turn: Turn, targets: Tensor, whole: int) -> tuple[float, float]:
        """What a turn's mean loss is multiplied by, and then its gradient with respect to features.

        A worker's convolutions get the gradient that they would get in data parallelism: of its own weighted
        loss, K times its part of the batch's.
        """
        share = _examples(turn) / whole
        together = 1.0 if self._manner.summed else 1 / self.workers
        if self._training.loss_reduction == "sum":
            terms = float(self._task.terms(targets))
            return (terms, 1.0) if self._manner.per_worker else (terms * together, 1 / together)
        if self._manner.per_worker:
            return 1.0, self.workers * share
        return self.workers * share * together, 1 / together

    def _to_all(
        self, channel: int, label: str, payload: Payload, sizes: Sequence[int], *, values: bool = False
    ) -> Post:
        return Post.to_everybody(channel, label, self.rank, payload, sizes, values=values)

    def _all_targets(self, own: Tensor, counts: Sequence[int], channel: int) -> Moves[list[Tensor]]:
        """Every worker's targets, by rank."""
        size = int(np.prod(own.shape[1:])) * own.element_size()
        yield self._to_all(channel, "targets", packed(own), [size * each for each in counts])
        received = yield from fetched(channel)
        found = []
        for rank, each in enumerate(counts):
            if rank == self.rank or not each:
                found.append(own[:each])
            else:
                theirs = unpacked(received[rank], (each, *own.shape[1:]), own.dtype)
                found.append(theirs.to(own.device))
        return found

    def _features_of(self, turn: Turn, mine: Tensor, channel: int) -> Post:
        """Starts to gather a turn's features."""
        row_bytes = mine.shape[1] * self._manner.wire.nbytes
        own = turn[self.rank]
        payload = self._manner.wire.pack(mine[own.start : own.stop])
        sizes = [len(rows) * row_bytes for rows in turn]
        return self._to_all(channel, "features", payload, sizes, values=True)

    def _assembled(self, turn: Turn, mine: Tensor, channel: int) -> Moves[Tensor]:
        """A turn's features [m, width], in the order of workers."""
        received = yield from fetched(channel)
        whole = mine.new_empty(_examples(turn), mine.shape[1])
        for rank, (rows, into) in enumerate(zip(turn, torch.split(whole, [*map(len, turn)]), strict=True)):
            if rank == self.rank:
                into.copy_(self._manner.wire.as_received(mine[rows.start : rows.stop]))
            elif rows:
                into.copy_(self._manner.wire.unpack(received[rank], into.shape, mine))
        return whole

    def _gradients_of(self, turn: Turn, part: Tensor, channel: int) -> Post:
        """Starts to send this worker's part of the gradient to the workers that own the examples."""
        row_bytes = part.shape[1] * self._manner.wire.nbytes
        lengths = nothing(self.workers)
        to = {}
        for rank, theirs in enumerate(torch.split(part, [*map(len, turn)])):
            lengths[:, rank] = len(theirs) * row_bytes
            lengths[rank, rank] = 0
            if rank != self.rank and len(theirs):
                to[rank] = self._manner.wire.pack(theirs)
        return Post(channel, "features' gradients", to, lengths, to_all=False, counts_as_values=True)

    def _returned(
        self, turn: Turn, channel: int, part: Tensor, factor: float, gradient: Tensor
    ) -> Moves[None]:
        """Adds up what workers send of a turn's gradient, for this worker's rows of it."""
        received = yield from fetched(channel)
        rows, shape = turn[self.rank], (len(turn[self.rank]), part.shape[1])
        if not rows:
            return
        parts = {rank: self._manner.wire.unpack(each, shape, part) for rank, each in received.items()}
        parts[self.rank] = self._manner.wire.as_received(torch.split(part, [*map(len, turn)])[self.rank])
        gradient[rows.start : rows.stop] = factor * added(parts, part.new_zeros(shape))


def _examples(turn: Turn) -> int:
    return sum(map(len, turn))


def _is_finite(values: Tensor) -> bool:
    """Whether there is no NaN or Inf; one pass that writes nothing, a thirtieth of `isfinite`'s time."""
    return not values.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())
