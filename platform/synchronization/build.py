"""Builds the workers of this process from a spec, in any mode."""

from collections.abc import Sequence
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.layout import cut_parameters, shards_of
from taugrad.compressors.exchange.addresses import places_of
from taugrad.compressors.exchange.carrier import Carrier, in_memory
from taugrad.compressors.exchange.keys import KeyProblem, key_of_environment
from taugrad.compressors.exchange.local_rounds import Agreed, LocalRounds, fragments_of, on_host
from taugrad.compressors.exchange.mesh import connected, most_bytes_of
from taugrad.compressors.exchange.patterns import downlink_method, pattern_for, self_contained
from taugrad.compressors.exchange.patterns.allgather import AllGather
from taugrad.compressors.exchange.patterns.base import Pattern
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.exchange.tensors import buffers_of
from taugrad.compressors.exchange.worker_group import WorkerGroup
from taugrad.compressors.methods import Method, NoCompression, read_config
from taugrad.compressors.methods.dense import DenseSymbols
from taugrad.compressors.ops import ops_for

from ..replica.generators import Randomness
from ..replica.replica import Replica
from ..spec import RunSpec
from ..spec.synchronization import (
    AsyncSync,
    GradientsSync,
    HybridSync,
    RealSync,
    WeightsSync,
    real,
)
from ..spec.validation import needed_of
from ..tasks.task import Task
from .asynchronous.mode import AsynchronousTraining
from .gathering import all_gather_texts
from .gradients import GradientsInRounds
from .hooked import HookedGradients
from .hybrid.exchange import DenseMessages
from .hybrid.layers import two_parts
from .hybrid.mode import HybridTraining
from .hybrid.worker import HybridWorker
from .quorum.free import Decide, FreeRounds, by_store
from .quorum.scheduled import ScheduledRounds
from .simulated import SimulatedWorkers
from .synchronization import Synchronization, WorkerInLockstep
from .weights import LocalTraining, LocalWorker, trained_of

SILENT_AFTER_S = 10.0
"""With a quorum: seconds of silence after which a worker is not asked for anything, if another one can be."""
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def build_synchronization(
    spec: RunSpec, model: nn.Module, task: Task, device: torch.device, decide: Decide | None = None
) -> tuple[Synchronization, Randomness]:
    """The workers of this process, in the mode that the spec asks for; torch's process group must exist.

    The model has the same weights on every worker. `decide` closes rounds with a quorum; by default the
    process group's store does. Raises KeyProblem: messages are to be authenticated, and a worker has no key;
    WorkersDisagree: likewise, and the workers' keys differ; ValueError: the mode is hybrid, and the model
    does not name its two parts, or cannot be cut.
    """
    return _Build(spec, model, task, device, decide).build()


class _Build:
    """What the modes are built from.

    Attributes:
        groups: of this process's worker, or of all simulated ones.
        randomness: theirs.
        workers: how many there are everywhere.
    """

    groups: Sequence[WorkerGroup]
    randomness: Randomness
    workers: int

    def __init__(
        self, spec: RunSpec, model: nn.Module, task: Task, device: torch.device, decide: Decide | None
    ) -> None:
        self.spec, self.model, self.task, self.device, self.decide = spec, model, task, device, decide
        self.mode: RealSync = real(spec.sync)
        clip = spec.training.clip
        self.clips_own = bool(clip.norm) and clip.of == "worker"
        """A gradient must be whole before any of it is compressed: the hook has it bucket by bucket."""
        self.method = _exchanged(spec)

    def build(self) -> tuple[Synchronization, Randomness]:
        """See `build_synchronization`."""
        spec, mode, simulated = self.spec, self.mode, self.spec.sync.is_simulated
        key = self._key() if mode.authenticated else None
        if isinstance(mode, GradientsSync) and mode.island is not None:
            from .islands import IslandGradients  # noqa: PLC0415 - FSDP2 takes a second

            islands = IslandGradients(spec, self.method, self.model, self.task, self.device, key)
            return islands, Randomness(spec.seed, islands.ranks)
        if isinstance(mode, GradientsSync) and not simulated and not self.clips_own:
            replica = Replica(self.model, self.task, spec.training, dist.get_world_size())
            hooked = HookedGradients(spec, self.method, replica, self.device, key)
            return hooked, Randomness(spec.seed, [dist.get_rank()])
        if simulated:
            self.groups = [WorkerGroup(carrier) for carrier in in_memory(spec.workers.count)]
        else:
            self.groups = [WorkerGroup(self._carrier(key), self.device)]
            self.groups[0].broadcast([*self.model.parameters(), *self.model.buffers()])
        self.workers = self.groups[0].workers
        self.randomness = Randomness(spec.seed, [group.rank for group in self.groups])
        workers = self._workers()
        return SimulatedWorkers(workers) if simulated else workers[0], self.randomness

    def _workers(self) -> Sequence[WorkerInLockstep]:
        """One per group. Simulated workers share what is the same on all."""
        match self.mode:
            case AsyncSync():
                return self._async(self.mode)
            case HybridSync():
                return self._hybrid(self.mode)
            case WeightsSync():
                return self._weights(self.mode)
            case _:
                return self._gradients()

    @staticmethod
    def _key() -> bytes:
        """This worker's key; all workers call this together, and all raise KeyProblem where one has none."""
        key, problem = b"", ""
        try:
            key = key_of_environment()
        except KeyProblem as error:
            problem = str(error)
        for rank, said in enumerate(all_gather_texts(problem)):
            if said:
                raise KeyProblem(f"sync.authenticated on worker {rank}: {said}")
        return key

    def _gradients(self) -> Sequence[WorkerInLockstep]:
        replica = Replica(self.model, self.task, self.spec.training, self.workers)
        replicas = [replica, *(replica.with_own_buffers() for _ in self.groups[1:])]
        refuses = self.spec.compressor.nonfinite == "refuse"
        return [
            GradientsInRounds(*own, self.randomness, refuses=refuses)
            for own in zip(self.groups, self._patterns(replica), replicas, strict=True)
        ]

    def _weights(self, mode: WeightsSync) -> Sequence[WorkerInLockstep]:
        model = deepcopy(self.model)
        weights = [
            on_host(parameter) if mode.offload else parameter.detach().view(-1)
            for parameter in trained_of(model)
        ]
        agreed = Agreed.begin(weights, buffers_of(model), mode)
        sites = self._sites() if mode.pattern == "hierarchical" else None
        replicas, made = self._replicas(), list[WorkerInLockstep]()
        sizes = [weights.numel() for weights in replicas[0].weights()]
        for group, worker, replica in zip(self.groups, self._workers_of(replicas[0]), replicas, strict=True):
            local = LocalRounds(
                group,
                worker,
                replica.names,
                fragments_of(sizes, mode.fragments),
                (self.method, mode.downlink),
                mode,
                mode.every,
                agreed,
                replica.parameters,
                replica.model,
                sites,
            )
            own = LocalWorker(group, local, model, replica, self.randomness)
            if mode.quorum is None:
                made.append(LocalTraining(mode, own))
                continue
            needed = needed_of(mode.quorum, self.workers)
            if mode.schedule is None and group.carrier.waits:
                made.append(FreeRounds(mode, own, needed, self.decide or by_store()))
            else:
                made.append(ScheduledRounds(mode, own, needed))
        return made

    def _async(self, mode: AsyncSync) -> Sequence[WorkerInLockstep]:
        return [
            AsynchronousTraining(group, self.spec, mode, replica, self.randomness)
            for group, replica in zip(self.groups, self._replicas(), strict=True)
        ]

    def _hybrid(self, mode: HybridSync) -> Sequence[WorkerInLockstep]:
        spec, parts = self.spec, two_parts(self.model)
        replica = Replica(parts.convolutional, self.task, spec.training, self.workers)
        values = _TYPES.get(mode.activations) or self._activations(mode)
        return [
            HybridTraining(
                group,
                pattern,
                self.model,
                replica,
                HybridWorker(parts, self.task, spec, mode, group.rank, self.workers),
                values,
                self.randomness,
                refuses=spec.compressor.nonfinite == "refuse",
            )
            for group, pattern in zip(self.groups, self._patterns(replica), strict=True)
        ]

    def _activations(self, mode: HybridSync) -> DenseMessages:
        method = self_contained(read_config(mode.activations))
        assert isinstance(method, DenseSymbols)
        return DenseMessages(method, ops_for(self.device))

    def _replicas(self) -> list[Replica]:
        """One per worker; the first has the model itself."""
        models = [self.model, *(deepcopy(self.model) for _ in self.groups[1:])]
        return [Replica(model, self.task, self.spec.training, self.workers) for model in models]

    def _carrier(self, key: bytes | None) -> Carrier:
        """This worker's way to the others."""
        mode = self.mode
        bound = most_bytes_of(self.model.state_dict().values())
        if isinstance(mode, HybridSync):  # activations of a whole batch
            linear = [layer for layer in self.model.modules() if isinstance(layer, nn.Linear)]
            widest = max(max(layer.in_features, layer.out_features) for layer in linear)
            activations = torch.empty(self.spec.training.largest_batch, widest, device="meta")
            bound = max(bound, most_bytes_of([activations]))
        # What is handed on at sites is one message of all workers; agreed weights go with their momentum.
        most_bytes = max(2, dist.get_world_size()) * bound
        silent_after_s: float | None = None
        patient = False
        if isinstance(mode, AsyncSync):
            silent_after_s, patient = mode.dead_after, mode.on_dead == "wait"
        elif isinstance(mode, WeightsSync) and mode.quorum is not None:
            silent_after_s, patient = SILENT_AFTER_S, True
        return connected(most_bytes=most_bytes, key=key, silent_after_s=silent_after_s, patient=patient)

    def _workers_of(self, replica: Replica) -> list[Worker]:
        """One per group; passes run where residuals lie."""
        offloads = isinstance(self.mode, WeightsSync) and self.mode.offload
        ops = ops_for(torch.device("cpu") if offloads else replica.parameters[0].device)
        hold_back_zeros = self.spec.training.find_unused_parameters
        return [Worker(ops, group.rank, self.workers, hold_back_zeros) for group in self.groups]

    def _patterns(self, replica: Replica) -> list[Pattern]:
        """One per worker."""
        sizes = dict(zip(replica.names, map(Tensor.numel, replica.weights()), strict=True))
        mode, method = self.mode, self.method
        downlink: Method = getattr(mode, "downlink", None) or downlink_method(method)
        name = mode.pattern_name
        workers = self._workers_of(replica)
        if not isinstance(mode, GradientsSync):
            return [pattern_for(name, method, downlink, worker, sizes) for worker in workers]
        if mode.gathers_buckets and isinstance(method, NoCompression) and not self.clips_own:
            return [AllGather(method, worker, sizes, all_reduces=True) for worker in workers]
        sites = self._sites() if name == "hierarchical" else None
        slices = cut_parameters(
            dict(reversed(sizes.items())), 1 if name == "parameter_server" else self.workers
        )
        shards = shards_of(slices, replica.names)  # as the hook cuts them
        return [
            pattern_for(name, method, downlink, worker, sizes, sites=sites, shards=shards)
            for worker in workers
        ]

    def _sites(self) -> Sites:
        """Where the workers are: as the spec says, else those of one host are one site."""
        if (named := self.mode.site_ranks) is not None:
            return Sites.of(named, self.workers)
        return Sites.by_place(places_of() if self.groups[0].carrier.waits else [""] * self.workers)


def _exchanged(spec: RunSpec) -> Method:
    """The compressor; with fp16 it leaves out steps whose gradients overflowed."""
    method = spec.compressor
    if spec.training.precision != "fp16" or method.brings_exchange or real(spec.sync).is_local:
        return method
    return method.model_copy(update={"nonfinite": "skip"})
