"""One worker's iteration: convolutions on its own examples, fully connected layers on those of all.

Each worker computes its own neurons of every fully connected layer (section 3). In the forward pass it needs
the outputs of all neurons of the layer before, so the workers gather them. In the backward pass each worker
has a part of the gradient with respect to these outputs; each adds up the parts for its own neurons. All
workers have all scores, and compute the same loss.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.spans import RECORDER

from ...data.batch_plan import Position
from ...data.feeding import Batch
from ...replica.optimizer import add_l1, build_optimizer
from ...replica.precision import autocast
from ...replica.rates import rate_at, set_rate
from ...replica.replica import is_finite
from ...spec import RunSpec
from ...spec.synchronization import HybridSync
from ...tasks.task import Task
from .exchange import ActivationExchange, PendingReceive, added
from .layers import ExampleRows, ModelParts, share_of

Scheme = Literal["a", "b", "c"]
Turn = list[range]
"""ExampleRows that go through the layers together: of each worker, by rank, the numbers among its own."""


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


class HybridWorker:
    """One worker. The convolutional part may be shared by workers of one process: they are replicas.

    Attributes:
        layers: its share of the fully connected ones.
        named: their parameters, by name in the model.
        optimizer: theirs.
        per_worker: whether they take a step after each turn, instead of one after all turns.
    """

    def __init__(
        self, parts: ModelParts, task: Task, spec: RunSpec, mode: HybridSync, rank: int, workers: int
    ) -> None:
        self.rank, self.workers, self.per_worker = rank, workers, mode.fc_batch == "per_worker"
        self._convolutional, self._training, self._task = parts.convolutional, spec.training, task
        self._scheme, self._seed, self._summed = mode.scheme, spec.seed, spec.compressor.reduction == "sum"
        self.layers = share_of(parts.fully_connected, rank, workers)
        self.named = {
            f"{layer.name}.{name}": own for layer in self.layers for name, own in layer.named_parameters()
        }
        self.optimizer = build_optimizer(spec.training.optimizer, self.named.values())
        add_l1(self.optimizer, self.named.items(), spec.training)
        self._device = next(parts.convolutional.parameters()).device
        self._refused: int | None = None

    def iterate(
        self,
        batch: Batch,
        position: Position,
        alone: Callable[[], AbstractContextManager[None]],
        exchange: ActivationExchange,
    ) -> Coroutine[Computed]:
        """Computes everything up to the gradient with respect to the worker's own features.

        `alone` is a context that is entered where random numbers of this worker are drawn.
        """
        size = len(batch) if batch.weight else 0
        counting = exchange.to_all("counts", torch.tensor([size]), [(1,)] * self.workers, values=False)
        buffers = [(name, buffer.clone()) for name, buffer in self._convolutional.named_buffers()]
        features: Tensor | None = None
        if size:
            with RECORDER.computing("forward", "conv"), alone(), self._autocast():
                features = functional_call(self._convolutional, dict(buffers), (batch.inputs,))
        counts = [int(tensor) for tensor in (yield from exchange.taken(counting))]
        shapes = [(count, *batch.targets.shape[1:]) for count in counts]
        labels = exchange.to_all("targets", batch.targets[:size], shapes, values=False)
        targets = yield from exchange.taken(labels)
        like = self.layers[0].weight
        mine = (
            like.new_zeros(0, self.layers[0].inputs) if features is None else features.detach().to(like.dtype)
        )
        self._refused = None
        loss, gradient = yield from self._turns(mine, targets, counts, position, exchange)
        self._look_at_gradients()
        return Computed(loss, features, gradient, [buffer for _, buffer in buffers], self._refused)

    def step(self, position: Position) -> None:
        """Applies the gradients of the worker's layers, and drops them.

        If each turn is a batch of its own, learning rate and decay are those of such a batch (section 5).
        """
        if self.per_worker:
            position = replace(position, batch_size=-(-position.batch_size // self.workers))
        with RECORDER.computing("optimizer", "fc"):
            together = 1 if self.per_worker else self.workers
            set_rate(self.optimizer, rate_at(self._training, position, together))
            self.optimizer.step()
            self.forget()

    def forget(self) -> None:
        """Drops the gradients of its layers."""
        self.optimizer.zero_grad()

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self._training.precision, self._device)

    def _look_at_gradients(self) -> None:
        """Notes the first parameter whose gradient holds NaN or Inf."""
        for ordinal, parameter in enumerate(self.named.values()):
            if self._refused is None and parameter.grad is not None and not is_finite(parameter.grad):
                self._refused = ordinal

    def _turns(
        self,
        mine: Tensor,
        targets: Sequence[Tensor],
        counts: Sequence[int],
        position: Position,
        exchange: ActivationExchange,
    ) -> Coroutine[tuple[float, Tensor]]:
        """All turns: the batch's loss, and the gradient with respect to this worker's features.

        While one turn is computed, the features of the next and the gradients of the last one are under way.
        """
        turns, whole = turns_of(self._scheme, counts), sum(counts)
        firsts = list(accumulate(counts, initial=0))  # of each worker's examples in the whole batch
        gradient = torch.zeros_like(mine)
        loss = 0.0

        def send_features(turn: Turn) -> PendingReceive:
            rows_here, shapes = turn[self.rank], [(len(rows), mine.shape[1]) for rows in turn]
            return exchange.to_all("features", mine[rows_here.start : rows_here.stop], shapes)

        def take_gradient(turn: Turn, factor: float, pending: PendingReceive) -> Coroutine[None]:
            """Adds up what workers send of a turn's gradient, for this worker's rows of it."""
            parts, rows = (yield from exchange.taken(pending)), turn[self.rank]
            gradient[rows.start : rows.stop] = factor * added(parts)

        returning: tuple[Turn, float, PendingReceive] | None = None
        arriving = send_features(turns[0])
        for number, turn in enumerate(turns):
            pending = arriving
            for following in turns[number + 1 : number + 2]:
                arriving = send_features(following)
            features = torch.cat((yield from exchange.taken(pending)))
            wanted = torch.cat(
                [target[rows.start : rows.stop] for target, rows in zip(targets, turn, strict=True)]
            )
            places = [
                first + np.arange(rows.start, rows.stop) for first, rows in zip(firsts, turn, strict=False)
            ]
            rows_of_all = torch.from_numpy(np.concatenate(places)).to(mine.device)
            examples = ExampleRows(self._seed, position.done, rows_of_all)
            factor, back = self._factors(turn, wanted, whole)
            mean, part = yield from self._learn(exchange, features, wanted, examples, factor)
            loss += _examples(turn) / whole * mean
            if self.per_worker:
                self._look_at_gradients()
                self.step(position)
            if returning is not None:
                yield from take_gradient(*returning)
            by_owner = torch.split(part, [*map(len, turn)])
            returning = turn, back, exchange.to_owners("features' gradients", by_owner)
        assert returning is not None
        yield from take_gradient(*returning)
        return loss, gradient

    def _learn(
        self,
        exchange: ActivationExchange,
        features: Tensor,
        targets: Tensor,
        examples: ExampleRows,
        factor: float,
    ) -> Coroutine[tuple[float, Tensor]]:
        """Forward and backward; gradients are added to those of the layers' parameters.

        Of features [m, inputs of the first layer], m at least 1, and targets [m, ...]. The mean loss is
        multiplied by `factor`.

        Returns the examples' mean loss, and [m, features], this worker's part of the loss's gradient with
        respect to the features: that of its neurons in the first layer. All workers' parts add up to the
        whole.
        """
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        whole = features
        for layer in self.layers:
            with RECORDER.computing("forward", "fc"):
                inputs.append(whole.detach().requires_grad_())
                with self._autocast():
                    outputs.append(layer(inputs[-1], examples).to(whole.dtype))
            shapes = [(len(features), len(neurons)) for neurons in layer.dealt]
            pending = exchange.to_all("neurons", outputs[-1].detach(), shapes)
            whole = torch.cat((yield from exchange.taken(pending)), dim=1)
        with RECORDER.computing("backward", "loss"):
            scores = whole.requires_grad_()
            mean = self._task.loss(scores, targets)
            torch.autograd.backward(factor * mean)
            assert scores.grad is not None
            held = self.layers[-1].held
            gradient = scores.grad[:, held.start : held.stop]
        while True:
            with RECORDER.computing("backward", "fc"):
                torch.autograd.backward(outputs.pop(), gradient)
                part = inputs.pop().grad
            assert part is not None
            if not inputs:
                return mean.item(), part
            dealt = self.layers[len(inputs) - 1].dealt
            parts = [part[:, neurons.start : neurons.stop] for neurons in dealt]
            gradient = added((yield from exchange.taken(exchange.to_owners("neurons' gradients", parts))))

    def _factors(self, turn: Turn, targets: Tensor, whole: int) -> tuple[float, float]:
        """What a turn's mean loss is multiplied by, and then its gradient with respect to features.

        A worker's convolutions get the gradient that they would get in data parallelism: of its own weighted
        loss, K times its part of the batch's.
        """
        share = _examples(turn) / whole
        together = 1.0 if self._summed else 1 / self.workers
        if self._training.loss_reduction == "sum":
            terms = float(self._task.terms(targets))
            return (terms, 1.0) if self.per_worker else (terms * together, 1 / together)
        if self.per_worker:
            return 1.0, self.workers * share
        return self.workers * share * together, 1 / together


def turns_of(scheme: Scheme, counts: Sequence[int]) -> list[Turn]:
    """The turns of one iteration, each with an example at least; `counts` are the workers' examples.

    Schemes (section 4.1): (a) the examples of all workers at once; (b) those of one worker after the other;
    (c) each turn has 1/K of every worker's.
    """
    workers = len(counts)
    match scheme:
        case "a":
            turns = [[range(count) for count in counts]]
        case "b":
            turns = [
                [range(count * (rank == at)) for rank, count in enumerate(counts)] for at in range(workers)
            ]
        case "c":
            turns = [
                [range(count * at // workers, count * (at + 1) // workers) for count in counts]
                for at in range(workers)
            ]
    return [turn for turn in turns if any(turn)]


def _examples(turn: Turn) -> int:
    return sum(map(len, turn))
