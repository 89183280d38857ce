"""The mode `hybrid`: runs the iterations of this process's workers, and keeps their state."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.patterns.base import Pattern
from taugrad.compressors.exchange.resizing import ranks_together
from taugrad.compressors.exchange.rounds import PendingRounds
from taugrad.compressors.exchange.runner import Runner
from taugrad.compressors.exchange.tensors import copy_into
from taugrad.compressors.spans import RECORDER

from ...data.feeding import Batch
from ...replica.generators import Randomness
from ...replica.replica import Replica
from ..gradients import GradientsInRounds
from ..ledger import Iteration
from ..synchronization import StepContext
from .exchange import Coroutine, Exchange, run_lockstep
from .layers import Layer, ModelParts, cut_optimizer
from .worker import Computed, HybridWorker


class HybridTraining(GradientsInRounds):
    """Replicas of the convolutional part, and a share of the fully connected one for each worker here.

    Between evaluations and checkpoints no worker has the whole fully connected part: `sync_model` gathers it.

    Attributes:
        workers_here: by rank, this process's.
    """

    def __init__(
        self,
        runner: Runner,
        patterns: Sequence[Pattern],
        model: nn.Module,
        parts: ModelParts,
        replica: Replica,
        workers: Sequence[HybridWorker],
        randomness: Randomness,
        *,
        refuses: bool,
    ) -> None:
        """Takes charge, with a worker and a pattern of the convolutions' gradients for each rank here.

        `model` is the whole, of the same weights on every worker; the replica has its convolutional part.
        `refuses`: whether a gradient that is not finite ends the run.
        """
        self._layers = [name for name, module in parts.fully_connected if isinstance(module, nn.Linear)]
        layers = [cast(Layer, layer) for layer in workers[0].layers]
        others = [f"{layer.name}.{name}" for layer in layers for name, _ in layer.named_parameters()]
        super().__init__(
            runner,
            patterns,
            replica,
            randomness,
            refuses=refuses,
            can_skip=not workers[0].config.per_worker,
            model=model,
            others=others,
        )
        self._parts, self.workers_here, self._config = parts, list(workers), workers[0].config
        self._elements = sum(parameter.numel() for parameter in self._whole_parameters())
        """The number of elements of the fully connected part."""
        self._is_whole = True
        self._deal_out()

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        iteration = self.ledger.begin()
        step = iteration.step
        step.elements += self._elements * len(self.ranks)
        self._free_parameters()
        convolutional = self._parts.convolutional
        self._broadcast(convolutional.buffers())
        for worker in self.workers_here:
            worker.forget()
        traffic = Traffic(self.workers)
        exchanges = self._exchanges(traffic)
        coroutines = [
            worker.iterate(batch, context.position, _alone(self._randomness, worker.rank), exchange)
            for worker, batch, exchange in zip(self.workers_here, batches, exchanges, strict=True)
        ]
        computed = run_lockstep(coroutines)
        losses = [result.loss for result in computed]
        buffers = computed[0].buffers  # worker 0's, as DDP has it
        pending = []
        for local, rank in enumerate(self.ranks):
            pending.append(self._begin_convolutions(local, rank, computed[local], context))
        del computed
        copy_into(list(convolutional.buffers()), buffers)
        mean = self._agree(pending)
        self._count_activations(traffic, exchanges)
        if mean is not None:
            self._replica.put_gradients(mean)
            self._replica.step(context.position)
            if not self._config.per_worker:
                for worker in self.workers_here:
                    worker.step(context.position)
        elif self._refuses:
            raise NonFiniteGradient(*step.nonfinite[0])
        iteration.loss = sum(losses) / len(losses)
        return iteration

    def _begin_convolutions(
        self, local: int, rank: int, computed: Computed, context: StepContext
    ) -> PendingRounds:
        """The backward pass of one worker's convolutions, and the beginning of their synchronization."""
        self._replica.optimizer.zero_grad()
        with RECORDER.computing("backward", "conv"):
            if computed.features is not None:
                gradient = computed.gradient.to(computed.features.dtype)
                torch.autograd.backward(computed.features, gradient)
        gradients = self._taken_gradients(rank, context)
        refused = None if computed.refused is None else len(self._replica.names) + computed.refused
        return self._averaging.begin(local, gradients, refused)

    def _exchanges(self, traffic: Traffic) -> list[Exchange]:
        """For each worker here; traffic counts what they send and receive."""
        values, waits = self._config.values, self._runner.waits
        return [Exchange(carrier, values, traffic, waits=waits) for carrier in self._runner.carriers]

    def _count_activations(self, traffic: Traffic, exchanges: Sequence[Exchange]) -> None:
        """Adds the traffic outside the convolutions' rounds to the ledgers."""
        step = self.ledger.now.step
        self.ledger.traffic.add(traffic)
        step.add(traffic.sums)
        step.exchange_s += sum(exchange.exchange_s for exchange in exchanges) / len(exchanges)
        step.blocked_s += sum(exchange.blocked_s for exchange in exchanges) / len(exchanges)

    def sync_model(self) -> None:
        """See `Synchronization.sync_model`: puts the workers' shares together. It is not in the ledgers."""
        if self._is_whole:
            return
        self._runner.broadcast(list(self._parts.convolutional.buffers()))
        here = zip(self.workers_here, self._exchanges(Traffic(self.workers)), strict=True)
        shares = run_lockstep([_all_shares(*arguments) for arguments in here])[0]
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
        """Gives each worker here its neurons of the whole fully connected part."""
        for worker in self.workers_here:
            for name, layer in zip(self._layers, worker.layers, strict=True):
                cast(Layer, layer).take_from(cast(nn.Linear, self.model.get_submodule(name)))

    def worker_state(self) -> dict[str, Any]:
        here = zip(self.ranks, self.workers_here, strict=True)
        optimizers = {str(rank): worker.optimizer.state_dict() for rank, worker in here}
        return {**super().worker_state(), "optimizers": optimizers}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        super().load(shared, local_state)
        for rank, worker in zip(self.ranks, self.workers_here, strict=True):
            worker.optimizer.load_state_dict(local_state["optimizers"][str(rank)])

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`.

        The fully connected part is cut again, with its optimizers' state. Links are counted anew.
        """
        patterns = [worker["patterns"] for worker in workers]
        former = ranks_together(
            [worker["optimizers"] for worker in workers], [pattern["workers"] for pattern in patterns]
        )
        super().reshard(shared, workers)
        for worker in self.workers_here:
            layers = [cast(Layer, layer) for layer in worker.layers]
            state = cut_optimizer(former, layers, worker.optimizer.state_dict())
            worker.optimizer.load_state_dict(state)

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        shapes = {name: tensor.shape for name, tensor in shared["model"].items()}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if not self._is_whole and name in shapes:
                    parameter.data = parameter.data.new_empty(shapes[name])
        self._is_whole = True
        super()._load_agreed(shared)
        self._deal_out()


def _alone(randomness: Randomness, rank: int) -> Any:
    return lambda: randomness.of(rank)


def _all_shares(worker: HybridWorker, exchange: Exchange) -> Coroutine[list[Tensor]]:
    """The whole of each parameter of the fully connected part: every worker sends its rows."""
    wholes: list[Tensor] = []
    for layer in (cast(Layer, layer) for layer in worker.layers):
        for parameter in layer.parameters():
            shapes = [(len(neurons), *parameter.shape[1:]) for neurons in layer.dealt]
            pending = exchange.to_all("weights", parameter.detach(), shapes, values=False)
            wholes.append(torch.cat((yield from exchange.taken(pending))))
    return wholes
