"""The mode `gradients` in islands: FSDP2 inside an island, compressed shards between islands.

Gradients are reduced in whole over an island's fast links. Each worker exchanges its shard of them with those
that have the same shard in other islands.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from taugrad.compressors import NonFiniteGradient, Step, compress_replicas
from taugrad.compressors.exchange.addresses import all_gather_bytes, places_of, transport_of
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.exchange.tensors import broadcast
from taugrad.compressors.exchange.worker_group import gather_rows
from taugrad.compressors.methods import Method

from ..data.feeding import Batch
from ..replica.optimizer import add_l1, build_optimizer
from ..replica.replica import Replica
from ..spec import RunSpec
from ..spec.synchronization import GradientsSync
from ..spec.validation import why_no_islands
from ..tasks.task import Task
from .ledger import Iteration, Links
from .synchronization import OneWorker, StepContext

_LEAST = 1 << 16
"""Elements of a layer that is gathered and reduced by itself, beside the computation of others."""


class IslandGradients(OneWorker):
    """This process's worker, which has a shard of its island's model.

    Attributes:
        replica: the sharded model, and the optimizer of this worker's shards.
        state: of the exchange between islands.
    """

    def __init__(
        self,
        spec: RunSpec,
        method: Method,
        model: nn.Module,
        task: Task,
        device: torch.device,
        key: bytes | None = None,
    ) -> None:
        """Shards a copy of the model, which itself has weights only from `sync_model` to the next step.

        Raises ValueError: hosts cannot be islands, as they have other numbers of workers; or FSDP2 cannot
        shard the model.
        """
        assert isinstance(spec.sync, GradientsSync)
        super().__init__(dist.get_rank(), dist.get_world_size())
        self.model, self._transport = model, transport_of(None, device)
        self._device, islands = device, islands_of(spec.sync, self.workers).members
        mesh = DeviceMesh(device.type, islands, mesh_dim_names=("islands", "shards"))
        self._peers, self._island = mesh["islands"].get_group(), mesh["shards"].get_group()
        sharded = deepcopy(model, {id(buffer): buffer for buffer in model.buffers()})  # which both have
        broadcast([*sharded.parameters(), *sharded.buffers()], None, self._transport)
        reduced_in = torch.bfloat16 if spec.sync.island_reduce == "bf16" else None
        self._sharded = _shard(sharded, mesh["shards"], MixedPrecisionPolicy(reduce_dtype=reduced_in))
        if spec.training.find_unused_parameters:
            self._sharded.set_reduce_scatter_unused_params(True)
        self.state = compress_replicas(sharded, mesh["islands"], method, key=key)
        self.replica = Replica(sharded, task, spec.training, self.workers)
        self._shards: list[Any] = list(sharded.parameters())  # DTensors
        # The optimizer works on plain tensors, which have the shards' memory.
        self._own = [nn.Parameter(shard.detach().to_local(), shard.requires_grad) for shard in self._shards]
        self.replica.optimizer = build_optimizer(spec.training.optimizer, self._own)
        names = [name for name, _ in sharded.named_parameters()]
        add_l1(self.replica.optimizer, zip(names, self._own, strict=True), spec.training)
        # FSDP2 takes the mean over the island.
        self._factor = float(len(islands[0])) if method.reduction == "sum" else 1.0
        self._refuses = spec.compressor.nonfinite == "refuse"
        self._accumulate = spec.training.accumulate

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        """See `Synchronization.iterate`. Statistics are of worker 0's shard of its island's gradients."""
        for whole in self.model.parameters():
            whole.data = whole.data.new_empty(0)
        if context.observe:
            self.state.observe_next_step()
        self.state.gradient_scale = self._factor / self.replica.scale.factor
        broadcast(self.model.buffers(), None, self._transport)
        loss, nonfinite = 0.0, list[tuple[str, int]]()
        try:
            parts = self._parts(batches[0])
            loss = self.replica.backward(batches[0], alone=self._held_back, parts=parts)
        except NonFiniteGradient as problem:  # in this shard
            nonfinite.append((problem.parameter, problem.rank))
        step = self._of_all_shards(nonfinite)
        if not step.skipped:
            for parameter, shard in zip(self._own, self._shards, strict=True):
                parameter.grad = None if shard.grad is None else cast(DTensor, shard.grad).to_local()
            self.replica.step(context.position)
        elif not self.replica.scale.overflowed() and self._refuses:
            raise NonFiniteGradient(*step.nonfinite[-1])
        self.replica.model.zero_grad()
        iteration = self.ledger.begin(step)
        iteration.loss, iteration.statistics = loss, self.state.statistics if context.observe else {}
        return iteration

    def _parts(self, batch: Batch) -> int:
        """How many parts a batch is cut into: each pass is a collective, so as many on all of the island."""
        parts = torch.tensor([min(self._accumulate, len(batch))], device=self._device)
        if self._accumulate > 1:
            dist.all_reduce(parts, dist.ReduceOp.MIN, group=self._island)
        return int(parts)

    @contextmanager
    def _held_back(self) -> Iterator[None]:
        """For parts of a batch: what is reduced inside the island adds up there, and is exchanged later."""
        self._sharded.set_requires_all_reduce(False)
        yield
        self._sharded.set_requires_all_reduce(True)

    def _of_all_shards(self, nonfinite: list[tuple[str, int]]) -> Step:
        """The ledger of the step for this worker's shard, with what was not finite in the whole island."""
        step = self.state.last_step
        counts = nonfinite + step.nonfinite
        count = torch.tensor([len(counts)], device=self._device)
        dist.all_reduce(count, group=self._island)
        if count.item():
            ranks = [*dist.get_process_group_ranks(self._peers), -1]
            mine = "".join(f"{ranks[island]} {name}\n" for name, island in counts)
            told = sorted(b"".join(all_gather_bytes(mine.encode(), self._island)).decode().splitlines())
            counts = [(name, int(rank)) for rank, _, name in (line.partition(" ") for line in told)]
        return replace(step, skipped_steps=step.steps if counts else 0, nonfinite=counts)

    def sync_model(self) -> None:
        """See `Synchronization.sync_model`: gathers the shards of this worker's island."""
        for whole, shard in zip(self.model.parameters(), self._shards, strict=True):
            whole.data = shard.detach().full_tensor()
        broadcast(self.model.buffers(), None, self._transport)

    def links(self) -> Links | None:
        """See `Synchronization.links`. FSDP2's transport decides inside islands."""
        return None

    def flush(self) -> None:
        if self.ledger.begun:
            self.ledger.complete(gather_rows(self.ledger.row(), self._transport))

    def shared_state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "totals": self.totals.state_dict()}

    def worker_state(self) -> dict[str, Any]:
        """See `Synchronization.worker_state`: what belongs to this worker's shard."""
        return {"exchange": self.state.state_dict(), "replica": self.replica.state_dict()}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        self.state.load_state_dict(local_state["exchange"])
        self._load(shared, local_state["replica"])

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`: for another number of islands of the same size."""
        size, shard = dist.get_world_size(self._island), dist.get_rank(self._island)
        former = [worker for worker in workers if f", shard {shard} of {size}" in "".join(worker["exchange"])]
        if len(former) * size != len(workers):
            raise ValueError(f"its islands had another size than {size} workers; keep the size of islands")
        self.state.load_state_dict([state["exchange"] for state in former], reshard=True)
        self._load(shared, former[0]["replica"])

    def _load(self, shared: Mapping[str, Any], replica: dict[str, Any]) -> None:
        self.model.load_state_dict(shared["model"])
        for whole, shard, parameter in zip(self.model.parameters(), self._shards, self._own, strict=True):
            cut = distribute_tensor(whole.data, shard.device_mesh, shard.placements, src_data_rank=None)
            parameter.data.copy_(cut.to_local())
        self.replica.load_state_dict(replica)
        self.ledger.load(shared["totals"])


def islands_of(mode: GradientsSync, workers: int) -> Sites:
    """The workers of each island; all must call this together. Raises ValueError: hosts cannot be islands."""
    if isinstance(mode.island, int):
        firsts = range(0, workers, mode.island)
        return Sites.of([range(first, first + mode.island) for first in firsts], workers)
    hosts = Sites.by_place(places_of()) if mode.sites is None else Sites.of(mode.sites, workers)
    if reason := why_no_islands("host", [len(member) for member in hosts.members]):
        raise ValueError(reason)
    return hosts


def _shard(model: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> FSDPModule:
    """Shards large layers one by one, and what is left of the model together.

    A layer with parameters that are used twice is left: FSDP2 would take these for others.
    """
    uses = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    for layer in list(_layers(model)):
        parameters = list(layer.parameters())
        if sum(parameter.numel() for parameter in parameters) >= _LEAST and all(
            uses[parameter] == 1 for parameter in parameters
        ):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """What the outermost lists and sequences of modules hold."""
    listed = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        if listed and not isinstance(child, nn.ModuleList | nn.ModuleDict):  # these have no forward
            yield child
        else:
            yield from _layers(child)
