"""Builds the workers of this process from a spec."""

from copy import deepcopy
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from taugrad.compressors.exchange.addresses import places_of
from taugrad.compressors.exchange.carrier import Carrier
from taugrad.compressors.exchange.mesh import connected, most_bytes_of
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.method import Method, NoCompression, PowerSGD

from ..spec import RunSpec
from ..tasks.base import Task
from ..training.generators import Randomness
from ..training.replica import Replica
from .asynchronous.building import build_asynchronous
from .base import Synchronization
from .config import (
    AllGatherSync,
    AsyncSync,
    HybridSync,
    PatternName,
    RealSync,
    SimulatedSync,
    WeightsSync,
    real,
)
from .gradients import GradientsInRounds
from .hooked import HookedGradients
from .hybrid.building import build_hybrid
from .keys import common_key
from .patterns import AllGather, Hierarchical, Pattern, Ring, Setting, Sharded
from .processes import ProcessCrew
from .quorum.building import SILENT_AFTER_S, build_quorum
from .rounds import Crew
from .simulation import Counting, SimulatedCrew
from .weights import LocalTraining, OwnWorkers


def build_synchronization(
    spec: RunSpec, model: nn.Module, task: Task, device: torch.device
) -> tuple[Synchronization, Randomness]:
    """The workers of this process, in the mode that the spec asks for; torch's process group must exist.

    Args:
        spec: the run.
        model: of the same weights on every worker.
        task: what it is trained for.
        device: the model's.

    Raises:
        KeyProblem: messages are to be authenticated, and a worker has no key.
        WorkersDisagree: likewise, and the workers' keys differ.
    """
    simulated = isinstance(spec.sync, SimulatedSync)
    mode = real(spec.sync)
    key = common_key(
        spec.sync, device if not simulated and dist.get_backend() == "nccl" else torch.device("cpu")
    )
    if isinstance(mode, AllGatherSync) and not simulated and not _clips_own(spec):
        randomness = Randomness(spec.seed, [dist.get_rank()])
        replica = Replica(model, task, spec.training, dist.get_world_size())
        return HookedGradients(spec, _exchanged(spec), replica, device, key), randomness
    crew: Crew = _simulated(spec) if simulated else ProcessCrew(device, _carrier(mode, model, key))
    if isinstance(mode, AsyncSync):
        return build_asynchronous(spec, model, task, device, crew)
    if isinstance(mode, HybridSync):
        return build_hybrid(spec, model, task, device, crew, lambda replica: _patterns(spec, replica, crew))
    randomness = Randomness(spec.seed, crew.ranks)
    replica = Replica(model, task, spec.training, crew.workers)
    patterns = _patterns(spec, replica, crew)
    if not isinstance(mode, WeightsSync):
        refuses = spec.compressor.nonfinite == "refuse"
        return GradientsInRounds(crew, patterns, replica, randomness, refuses=refuses), randomness
    replicas = [replica]
    replicas += [Replica(deepcopy(model), task, spec.training, crew.workers) for _ in crew.ranks[1:]]
    own = OwnWorkers(crew, patterns, replicas, randomness, _exchanged(spec), device)
    return (LocalTraining(mode, own) if mode.quorum is None else build_quorum(spec, own)), randomness


def _carrier(mode: RealSync, model: nn.Module, key: bytes | None) -> Carrier:
    """This worker's way to the others."""
    elements = sum(each.numel() for each in model.state_dict().values())
    # What is handed on at sites is one message of all workers; agreed weights go with their momentum.
    most_bytes = max(2, dist.get_world_size()) * most_bytes_of(elements)
    if isinstance(mode, AsyncSync):
        return connected(
            most_bytes=most_bytes,
            key=key,
            silent_after_s=mode.dead_after,
            patient=mode.on_dead == "wait",
        )
    if isinstance(mode, WeightsSync) and mode.quorum is not None:
        return connected(most_bytes=most_bytes, key=key, silent_after_s=SILENT_AFTER_S, patient=True)
    return connected(most_bytes=most_bytes, key=key)


def _clips_own(spec: RunSpec) -> bool:
    """Whether a gradient must be whole before any of it is compressed: the hook has it bucket by bucket."""
    return bool(spec.training.clip.norm) and spec.training.clip.of == "worker"


def _exchanged(spec: RunSpec) -> Method:
    """The compressor; with fp16 it leaves out steps whose gradients overflowed."""
    method = spec.compressor
    mode = real(spec.sync)
    if spec.training.precision != "fp16" or isinstance(method, PowerSGD) or isinstance(mode, WeightsSync):
        return method
    return method.model_copy(update={"nonfinite": "skip"})


def _simulated(spec: RunSpec) -> SimulatedCrew:
    workers, sites = spec.workers.count, getattr(real(spec.sync), "sites", None)
    return SimulatedCrew(workers, _counting(spec), None if sites is None else Sites.of(sites, workers))


def _counting(spec: RunSpec) -> Counting:
    """How the bytes of the mode that is simulated are counted."""
    mode = real(spec.sync)
    if not isinstance(mode, AllGatherSync) or _clips_own(spec):
        return "rounds"
    return "all-reduce" if isinstance(spec.compressor, NoCompression) else mode.exchange


def _patterns(spec: RunSpec, replica: Replica, crew: Crew) -> list[Pattern]:
    """One a rank."""
    setting = Setting(
        replica.names,
        [weights.clone() for weights in replica.weights()],
        rank=0,
        workers=crew.workers,
        threads=torch.get_num_threads(),
        hold_back_zeros=spec.training.find_unused_parameters,
    )
    mode = real(spec.sync)
    name = _pattern_name(mode, clips_own=_clips_own(spec))
    method = _exchanged(spec)
    back = getattr(mode, "back", None) or _returning(method)
    if isinstance(mode, WeightsSync) and mode.exchange == "weights":
        method, back = _self_contained(method), _self_contained(back)
    sites = _sites(mode, crew) if name == "hierarchical" else None
    return [_pattern(name, method, back, replace(setting, rank=rank), sites) for rank in crew.ranks]


def _sites(mode: RealSync, crew: Crew) -> Sites:
    """Where the workers are: as the spec says, else those of one host are one site."""
    named = getattr(mode, "sites", None)
    if named is not None:
        return Sites.of(named, crew.workers)
    return Sites.by_place(places_of())


def _pattern_name(mode: RealSync, *, clips_own: bool) -> PatternName:
    match mode:
        case WeightsSync():
            return mode.pattern
        case AllGatherSync() if clips_own and mode.exchange == "hierarchical":
            return "hierarchical"
        case HybridSync():
            return "sharded"
        case AsyncSync():
            raise AssertionError("it has no rounds")
        case _:
            return mode.mode


def _pattern(
    name: PatternName, method: Method, back: Method, setting: Setting, sites: Sites | None
) -> Pattern:
    match name:
        case "hierarchical":
            assert sites is not None
            return Hierarchical(method, setting, sites)
        case "allgather":
            return AllGather(method, setting)
        case "ring":
            return Ring(method, setting)
        case "parameter_server":
            return Sharded(method, back, setting, owners=1)
        case "sharded":
            return Sharded(method, back, setting, owners=None)


def _returning(method: Method) -> Method:
    """A sum's method on its way back: as the gradients', but their momentum is in it already."""
    return method.model_copy(update={"momentum": 0.0}) if method.own_momentum else method


def _self_contained(method: Method) -> Method:
    """Packages of weights stand for themselves: nothing is carried over to the next."""
    return method.model_copy(update={"decay": 0.0}) if hasattr(method, "decay") else method
