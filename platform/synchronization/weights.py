"""The mode `weights`: workers take local steps between exchanges (Oland-Raj, section 2; DiLoCo)."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.exchange.local_rounds import FormerModel, LocalRounds
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.resizing import model_of, ranks_together
from taugrad.compressors.exchange.tensors import buffers_of, copy_into, load_buffers
from taugrad.compressors.exchange.worker_group import WorkerGroup

from ..data.feeding import Batch
from ..replica.generators import Randomness
from ..replica.replica import Replica
from ..spec.synchronization import WeightsSync
from .ledger import Iteration, Notes
from .synchronization import StepContext, WorkerInLockstep


class LocalWorker(NamedTuple):
    """A worker, and what it trains with."""

    group: WorkerGroup
    local: LocalRounds
    """Whose agreed weights are the model's own tensors, but with `sync.offload`."""
    model: nn.Module
    """For what all agreed on; simulated workers share it."""
    replica: Replica
    randomness: Randomness


class LocalTraining(WorkerInLockstep):
    """A worker with a model and an optimizer of its own, in local rounds (see `LocalRounds`).

    `model` has the weights that all agreed on last; with `sync.offload`, from `sync_model` to the next step.
    """

    own_models = True
    notes: Sequence[str] = ("skipped",)
    """See `Ledger`: whether the worker left its own step out."""

    def __init__(self, sync: WeightsSync, worker: LocalWorker) -> None:
        """Takes charge of a worker."""
        self.local, self.model, self._replica = worker.local, worker.model, worker.replica
        elements = sum(parameter.numel() for parameter in worker.replica.parameters)
        super().__init__(worker.group, elements, self.notes)
        self._sync, self._randomness, self._trained = sync, worker.randomness, trained_of(worker.model)
        self.ledger.traffic = worker.local.traffic

    def iteration(self, batch: Batch, context: StepContext) -> Coroutine[Iteration]:
        """See `Synchronization.iterate`. The loss is of the worker's own model."""
        iteration = self.ledger.begin()
        self._empty_model()
        if batch.weight:  # without examples a worker stays where it is
            iteration.loss = batch.weight * self._learn(batch, context)
        ends = not self.local.every and context.position.ends_epoch
        merged = yield from self.local.advance(iteration.step, due=ends)
        if context.last:
            yield from self.local.finish(iteration.step)
        if merged or context.last:
            load_buffers(self.model, self.local.agreed.buffers)
        return iteration

    def _learn(self, batch: Batch, context: StepContext) -> float:
        """The worker's step on its part of a batch; the part's mean loss."""
        replica = self._replica
        with self._randomness.of(self.rank):
            loss = replica.backward(replace(batch, weight=1.0))
        replica.prepare_own()
        self.local.note_squares()
        if context.observe and self.rank == 0:
            self.ledger.now.statistics = replica.statistics()
        self._step_alone(context)
        return loss

    def agree(self) -> Coroutine[None]:
        yield self._fill_model

    def _empty_model(self) -> None:
        """Frees the model's memory while workers train, where agreed weights lie elsewhere."""
        for parameter in self._trained if self._sync.offload else ():
            parameter.data = parameter.data.new_empty(0)

    def _fill_model(self) -> None:
        """Loads the agreed weights into the model, where they lie elsewhere."""
        if self._sync.offload:
            for parameter, like, agreed in zip(
                self._trained, self._replica.parameters, self.local.agreed.weights, strict=True
            ):
                parameter.data = agreed.to(like.device, copy=True).view_as(like)

    def _step_alone(self, context: StepContext) -> None:
        """The worker's own step; in fp16 it is left out where gradients overflowed."""
        replica = self._replica
        if replica.scale.changes and (broken := replica.nonfinite()):
            if not replica.scale.overflowed():
                raise NonFiniteGradient(broken, self.rank, can_skip=False)
            self.ledger.note()["skipped"] = 1
            return
        replica.step(context.position)

    def _complete(self, iteration: Iteration, notes: Notes, own: np.void) -> None:
        iteration.step.skipped_steps = int(notes["skipped"].sum())

    def shared_state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "local": self.local.shared_state(),
            "ledger": self.totals.state_dict(),
        }

    def worker_state(self) -> dict[str, Any]:
        replica = {"model": self._replica.model.state_dict(), "replica": self._replica.state_dict()}
        return {
            "replicas": {str(self.rank): replica},
            "local": self.local.worker_state(),
            "traffic": {str(self.rank): self.ledger.traffic.state_dict()},
        }

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        self._fill_model()
        self.model.load_state_dict(shared["model"])
        copy_into(self.local.agreed.weights, self._trained)
        self.local.agreed.buffers = {name: buffer.clone() for name, buffer in buffers_of(self.model).items()}
        self.local.load_shared(shared["local"])
        self.ledger.load(shared["ledger"])

    def _load_replica(self, saved: Mapping[str, Any]) -> None:
        self._replica.model.load_state_dict(saved["model"])
        self._replica.load_state_dict(saved["replica"])

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`.

        Optimizers of workers that leave are dropped; a worker that joins starts with a copy of another one's.
        """
        self._load_agreed(shared)
        counts = [worker["local"]["workers"] for worker in workers]
        former = ranks_together([worker["replicas"] for worker in workers], counts)
        self._load_replica(deepcopy(former[model_of(self.rank, len(former))]))
        names = self._replica.names
        models = [
            FormerModel([state["model"][name] for name in names], state.get("pending")) for state in former
        ]
        self.local.reshard([worker["local"] for worker in workers], models)

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        self.local.load_worker_state(local_state["local"])
        self._load_agreed(shared)
        self._load_replica(local_state["replicas"][str(self.rank)])
        self.ledger.traffic.load_state_dict(local_state["traffic"][str(self.rank)])


def trained_of(model: nn.Module) -> list[nn.Parameter]:
    """Its parameters that are trained, in the replicas' order."""
    return [parameter for parameter in reversed([*model.parameters()]) if parameter.requires_grad]
