"""The mode `hybrid`: runs a worker's iterations, and keeps its state."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.exchange import Exchange
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.patterns.base import Pattern
from taugrad.compressors.exchange.resizing import ranks_together
from taugrad.compressors.exchange.tensors import copy_into
from taugrad.compressors.exchange.worker_group import WorkerGroup
from taugrad.compressors.spans import RECORDER

from ...data.feeding import Batch
from ...replica.generators import Randomness
from ...replica.replica import Replica
from ..gradients import GradientsInRounds
from ..ledger import Iteration
from ..synchronization import StepContext
from .exchange import ActivationExchange
from .layers import Layer, ModelParts, cut_optimizer
from .worker import Computed, HybridWorker


class HybridTraining(GradientsInRounds):
    """A worker with a replica of the convolutional part, and a share of the fully connected one.

    Between evaluations and checkpoints no worker has the whole fully connected part: `sync_model` gathers it.

    Attributes:
        worker: its layers, and what it computes.
    """

    def __init__(
        self,
        group: WorkerGroup,
        pattern: Pattern,
        model: nn.Module,
        parts: ModelParts,
        replica: Replica,
        worker: HybridWorker,
        randomness: Randomness,
        *,
        refuses: bool,
    ) -> None:
        """Takes charge of a worker; the pattern is that of the convolutions' gradients.

        `model` is the whole, of the same weights on every worker; the replica has its convolutional part.
        `refuses`: whether a gradient that is not finite ends the run.
        """
        self._layers = [name for name, module in parts.fully_connected if isinstance(module, nn.Linear)]
        layers = [cast(Layer, layer) for layer in worker.layers]
        others = [f"{layer.name}.{name}" for layer in layers for name, _ in layer.named_parameters()]
        super().__init__(
            group,
            pattern,
            replica,
            randomness,
            refuses=refuses,
            can_skip=not worker.config.per_worker,
            model=model,
            others=others,
        )
        self._parts, self.worker, self._config = parts, worker, worker.config
        self._elements = sum(parameter.numel() for parameter in self._whole_parameters())
        """The number of elements of the fully connected part."""
        self._is_whole = True

    def iteration(self, batch: Batch, context: StepContext) -> Coroutine[Iteration]:
        iteration = self.ledger.begin()
        step = iteration.step
        step.elements += self._elements
        self._free_parameters()
        convolutional = self._parts.convolutional
        self._share_buffers(convolutional)
        self.worker.forget()
        exchange, traffic = self._exchange()
        alone = partial(self._randomness.of, self.rank)
        computed = yield from self.worker.iterate(batch, context.position, alone, exchange)
        iteration.loss, buffers = computed.loss, computed.buffers
        pending = self._begin_convolutions(computed, context)
        del computed
        mean = yield from self._mean(pending)
        self.ledger.traffic.add(traffic)
        step.add(traffic.sums)
        step.exchange_s += exchange.exchange_s
        step.blocked_s += exchange.blocked_s
        step.compress_s += exchange.compress_s
        step.decompress_s += exchange.decompress_s
        yield partial(copy_into, [*convolutional.buffers()], buffers)  # worker 0's, as DDP has it
        yield partial(self._step, mean, context)
        if mean is not None and not self._config.per_worker:
            self.worker.step(context.position)
        return iteration

    def _step(self, mean: Tensor | None, context: StepContext) -> None:
        if mean is not None:
            self._replica.put_gradients(mean)
            self._replica.step(context.position)
        elif self._refuses:
            raise NonFiniteGradient(*self.ledger.now.step.nonfinite[0])

    def _begin_convolutions(self, computed: Computed, context: StepContext) -> Exchange:
        """The backward pass of the worker's convolutions, and the beginning of their synchronization."""
        self._replica.optimizer.zero_grad()
        with RECORDER.computing("backward", "conv"):
            if computed.features is not None:
                gradient = computed.gradient.to(computed.features.dtype)
                torch.autograd.backward(computed.features, gradient)
        refused = None if computed.refused is None else len(self._replica.names) + computed.refused
        return self._averaging.begin(self._taken_gradients(context), refused)

    def _exchange(self) -> tuple[ActivationExchange, Traffic]:
        """The exchanges of activations, and what counts them."""
        traffic = Traffic(self.workers)
        return ActivationExchange(self._group.carrier, self._config.values, traffic), traffic

    def agree(self) -> Coroutine[None]:
        """See `Synchronization.sync_model`: puts the workers' shares together. It is not in the ledgers."""
        if self._is_whole:
            return
        self._group.broadcast(list(self._parts.convolutional.buffers()))
        shares = yield from _all_shares(self.worker, self._exchange()[0])
        for whole, share in zip(self._whole_parameters(), shares, strict=True):
            whole.data = share
        self._is_whole = True

    def _free_parameters(self) -> None:
        """Frees the memory of the whole fully connected part, until `sync_model` is called."""
        for whole in self._whole_parameters():
            whole.data = whole.data.new_empty(0)
        self._is_whole = False

    def _whole_parameters(self) -> list[nn.Parameter]:
        """Parameters of the fully connected part, as workers have them: weight and bias of each layer."""
        return [
            parameter for name in self._layers for parameter in self.model.get_submodule(name).parameters()
        ]

    def _deal_out(self) -> None:
        """Gives the worker its neurons of the whole fully connected part."""
        for name, layer in zip(self._layers, self.worker.layers, strict=True):
            cast(Layer, layer).take_from(cast(nn.Linear, self.model.get_submodule(name)))

    def worker_state(self) -> dict[str, Any]:
        return {**super().worker_state(), "optimizers": {str(self.rank): self.worker.optimizer.state_dict()}}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        super().load(shared, local_state)
        self.worker.optimizer.load_state_dict(local_state["optimizers"][str(self.rank)])

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`.

        The fully connected part is cut again, with its optimizers' state. Links are counted anew.
        """
        patterns = [worker["patterns"] for worker in workers]
        former = ranks_together(
            [worker["optimizers"] for worker in workers], [pattern["workers"] for pattern in patterns]
        )
        super().reshard(shared, workers)
        layers, optimizer = [cast(Layer, layer) for layer in self.worker.layers], self.worker.optimizer
        optimizer.load_state_dict(cut_optimizer(former, layers, optimizer.state_dict()))

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        shapes = {name: tensor.shape for name, tensor in shared["model"].items()}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if not self._is_whole and name in shapes:
                    parameter.data = parameter.data.new_empty(shapes[name])
        self._is_whole = True
        super()._load_agreed(shared)
        self._deal_out()


def _all_shares(worker: HybridWorker, exchange: ActivationExchange) -> Coroutine[list[Tensor]]:
    """The whole of each parameter of the fully connected part: every worker sends its rows."""
    wholes: list[Tensor] = []
    for layer in (cast(Layer, layer) for layer in worker.layers):
        for parameter in layer.parameters():
            shapes = [(len(neurons), *parameter.shape[1:]) for neurons in layer.dealt]
            pending = exchange.to_all("weights", parameter.detach(), shapes, values=False)
            wholes.append(torch.cat((yield from exchange.taken(pending))))
    return wholes
