"""The mode `hybrid`: runs a worker's iterations, and keeps its state."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

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
from .exchange import ActivationExchange, Encoding
from .layers import cut_optimizer
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
        replica: Replica,
        worker: HybridWorker,
        values: Encoding,
        randomness: Randomness,
        *,
        refuses: bool,
    ) -> None:
        """Takes charge of a worker; the pattern is that of the convolutions' gradients.

        `model` is the whole, of the same weights on every worker; the replica has its convolutional part.
        Activations and their gradients travel as `values`. `refuses`: whether a gradient that is not finite
        ends the run.
        """
        super().__init__(
            group,
            pattern,
            replica,
            randomness,
            refuses=refuses,
            can_skip=not worker.per_worker,
            model=model,
            others=[*worker.named],
        )
        self._convolutional, self.worker, self._values = replica.model, worker, values
        self._elements = sum(parameter.numel() for parameter in self._whole_parameters())
        """The number of elements of the fully connected part."""
        self._is_whole = True

    def iteration(self, batch: Batch, context: StepContext) -> Coroutine[Iteration]:
        iteration = self.ledger.begin()
        iteration.step.elements += self._elements
        for whole in self._whole_parameters():  # nobody needs them until `sync_model` is called
            whole.data = whole.data.new_empty(0)
        self._is_whole = False
        self._share_buffers(self._convolutional)
        self.worker.forget()
        exchange = ActivationExchange(self._group.carrier, self._values)
        alone = partial(self._randomness.of, self.rank)
        computed = yield from self.worker.iterate(batch, context.position, alone, exchange)
        iteration.loss, buffers = computed.loss, computed.buffers
        pending = self._begin_convolutions(computed, context)
        del computed
        mean = yield from self._mean(pending)
        exchange.count(iteration.step, self.ledger.traffic)
        yield partial(copy_into, [*self._convolutional.buffers()], buffers)  # worker 0's, as DDP has it
        yield partial(self._step, mean, context)
        if mean is not None and not self.worker.per_worker:
            self.worker.step(context.position)
        return iteration

    def _begin_convolutions(self, computed: Computed, context: StepContext) -> Exchange:
        """The backward pass of the worker's convolutions, and the beginning of their synchronization."""
        self._replica.optimizer.zero_grad()
        with RECORDER.computing("backward", "conv"):
            if computed.features is not None:
                gradient = computed.gradient.to(computed.features.dtype)
                torch.autograd.backward(computed.features, gradient)
        refused = None if computed.refused is None else len(self._replica.names) + computed.refused
        return self._averaging.begin(self._taken_gradients(context), refusal=refused)

    def agree(self) -> Coroutine[None]:
        """See `Synchronization.sync_model`: puts the workers' shares together. It is not in the ledgers."""
        if self._is_whole:
            return
        self._group.broadcast(list(self._convolutional.buffers()))
        exchange = ActivationExchange(self._group.carrier, self._values)
        shares: list[Tensor] = []
        for layer in self.worker.layers:
            for parameter in layer.parameters():
                shapes = [(len(neurons), *parameter.shape[1:]) for neurons in layer.dealt]
                pending = exchange.to_all("weights", parameter.detach(), shapes, values=False)
                shares.append(torch.cat((yield from exchange.taken(pending))))
        for whole, share in zip(self._whole_parameters(), shares, strict=True):
            whole.data = share
        self._is_whole = True

    def _whole_parameters(self) -> list[nn.Parameter]:
        """Parameters of the fully connected part, as workers have them: weight and bias of each layer."""
        wholes = (self.model.get_submodule(layer.name) for layer in self.worker.layers)
        return [parameter for whole in wholes for parameter in whole.parameters()]

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
        optimizer = self.worker.optimizer
        optimizer.load_state_dict(cut_optimizer(former, self.worker.layers, optimizer.state_dict()))

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        shapes = {name: tensor.shape for name, tensor in shared["model"].items()}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if not self._is_whole and name in shapes:
                    parameter.data = parameter.data.new_empty(shapes[name])
        self._is_whole = True
        super()._load_agreed(shared)
        for layer in self.worker.layers:
            layer.take_from(cast(nn.Linear, self.model.get_submodule(layer.name)))
