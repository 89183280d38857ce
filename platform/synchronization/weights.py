"""The mode `weights`: workers take local steps between exchanges (Oland-Raj, section 2; DiLoCo)."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.exchange.local_rounds import (
    FormerModel,
    LocalRounds,
    LocalWorker,
    fragments_of,
    on_host,
)
from taugrad.compressors.exchange.patterns.base import Setting
from taugrad.compressors.exchange.resizing import model_of, ranks_together
from taugrad.compressors.exchange.runner import Runner
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.exchange.tensors import buffers_of, copy_into, load_buffers
from taugrad.compressors.methods import Method

from ..data.feeding import Batch
from ..replica.generators import Randomness
from ..replica.replica import Replica
from ..spec.synchronization import WeightsSync
from .ledger import Iteration
from .synchronization import InRounds, StepContext


@dataclass(frozen=True)
class OwnWorkers:
    """The workers of this process, and what they train with."""

    runner: Runner
    setting: Setting
    """The setting of all their parameters."""
    sites: Sites | None
    """For hierarchical."""
    replicas: Sequence[Replica]
    """Theirs."""
    randomness: Randomness
    method: Method
    """What is compressed with."""


class LocalTraining(InRounds):
    """A model and an optimizer for each worker here, in local rounds (see `LocalRounds`).

    `model` has the weights that all agreed on last; with `sync.offload`, from `sync_model` to the next step.
    """

    own_models = True

    def __init__(self, sync: WeightsSync, workers: OwnWorkers) -> None:
        """Takes charge of this process's workers."""
        runner, replicas, setting = workers.runner, workers.replicas, workers.setting
        self._sync, self._replicas = sync, list(replicas)
        self._randomness = workers.randomness
        self.model = deepcopy(replicas[0].model)
        runner.broadcast([*self.model.parameters(), *self.model.buffers()])
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._trained.reverse()  # in the replicas' order
        agreed = [
            on_host(parameter) if sync.offload else parameter.detach().view(-1) for parameter in self._trained
        ]
        self.local = LocalRounds(
            runner,
            setting,
            fragments_of(setting.sizes, sync.fragments),
            (workers.method, sync.back),
            sync,
            sync.every,
            agreed,
            {name: buffer.clone() for name, buffer in buffers_of(self.model).items()},
            [LocalWorker(replica.parameters, replica.model) for replica in replicas],
            workers.sites,
        )
        super().__init__([fragment.averaging for fragment in self.local.fragments], replicas[0].names)
        self.ledger.traffic = self.local.traffic

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        """See `Synchronization.iterate`. Losses are of each worker's own model."""
        iteration = self.ledger.begin()
        self._empty_model()
        losses = []
        for local, batch in enumerate(batches):
            # Without examples a worker stays where it is.
            losses.append(batch.weight * self._learn(local, batch, context) if batch.weight else 0.0)
        ends = not self.local.every and context.position.ends_epoch
        merged = self.local.advance(iteration.step, due=ends)
        if context.last:
            self.local.finish(iteration.step)
        if merged or context.last:
            load_buffers(self.model, self.local.agreed_buffers)
        iteration.loss = sum(losses) / len(losses)
        return iteration

    def _learn(self, local: int, batch: Batch, context: StepContext) -> float:
        """A worker's step on its part of a batch; the part's mean loss."""
        rank, replica = self.ranks[local], self._replicas[local]
        with self._randomness.of(rank):
            loss = replica.backward(replace(batch, weight=1.0))
        replica.prepare_own()
        self.local.note_squares(local)
        if context.observe and rank == 0:
            self.ledger.now.statistics = replica.statistics()
        self._step_alone(replica, rank, context)
        return loss

    def sync_model(self) -> None:
        self._fill_model()

    def _empty_model(self) -> None:
        """Frees the model's memory while workers train, where agreed weights lie elsewhere."""
        for parameter in self._trained if self._sync.offload else ():
            parameter.data = parameter.data.new_empty(0)

    def _fill_model(self) -> None:
        """Loads the agreed weights into the model, where they lie elsewhere."""
        if self._sync.offload:
            for parameter, like, agreed in zip(
                self._trained, self._replicas[0].parameters, self.local.agreed, strict=True
            ):
                parameter.data = agreed.to(like.device, copy=True).view_as(like)

    def _step_alone(self, replica: Replica, rank: int, context: StepContext) -> None:
        """One worker's own step; in fp16 it is left out where gradients overflowed."""
        if replica.scale.factor != 1 and (broken := replica.nonfinite()):
            if not replica.scale.overflowed():
                raise NonFiniteGradient(broken, rank, can_skip=False)
            return
        replica.step(context.position)

    def shared_state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "local": self.local.shared_state(),
            "ledger": self.totals.state_dict(),
        }

    def worker_state(self) -> dict[str, Any]:
        replicas = {
            str(rank): {"model": replica.model.state_dict(), "replica": replica.state_dict()}
            for rank, replica in zip(self.ranks, self._replicas, strict=True)
        }
        traffic = self.ledger.traffic.state_dict()
        return {"replicas": replicas, "local": self.local.worker_state(), "traffic": traffic}

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        self._fill_model()
        self.model.load_state_dict(shared["model"])
        copy_into(self.local.agreed, self._trained if self._sync.offload else self.local.agreed)
        self.local.agreed_buffers = {name: buffer.clone() for name, buffer in buffers_of(self.model).items()}
        self.local.load_shared(shared["local"])
        self.ledger.load(shared["ledger"])

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`.

        Optimizers of workers that leave are dropped; a worker that joins starts with a copy of another one's.
        """
        self._load_agreed(shared)
        counts = [worker["local"]["workers"] for worker in workers]
        former = ranks_together([worker["replicas"] for worker in workers], counts)
        for rank, replica in zip(self.ranks, self._replicas, strict=True):
            model = former[model_of(rank, len(former))]
            replica.model.load_state_dict(model["model"])
            replica.load_state_dict(deepcopy(model["replica"]))
        models = [
            FormerModel([state["model"][name] for name in self._names], state.get("pending"))
            for state in former
        ]
        self.local.reshard([worker["local"] for worker in workers], models)

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        self.local.load_worker_state(local_state["local"])
        self._load_agreed(shared)
        for rank, replica in zip(self.ranks, self._replicas, strict=True):
            replica.model.load_state_dict(local_state["replicas"][str(rank)]["model"])
            replica.load_state_dict(local_state["replicas"][str(rank)]["replica"])
        self.ledger.traffic.load_state_dict(local_state["traffic"])
