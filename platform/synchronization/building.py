"""From a spec to the workers of this process."""

from copy import deepcopy
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from taugrad.compressors.config import AnyMethod, NoCompression

from ..spec import RunSpec
from ..training.randomness import Randomness
from ..training.replica import Examples, Replica
from .base import Synchronization
from .config import AllGatherSync, PatternName, SimulatedSync, WeightsSync, real
from .gradients import GradientsInRounds
from .hooked import HookedGradients
from .patterns import AllGather, Pattern, Ring, Setting, Sharded
from .processes import ProcessCrew
from .rounds import Crew
from .simulation import Counting, SimulatedCrew
from .weights import LocalTraining


def build_synchronization(
    spec: RunSpec, model: nn.Module, examples: Examples
) -> tuple[Synchronization, Randomness]:
    """The workers of this process, in the mode that the spec asks for; torch's process group must exist.

    Args:
        spec: the run.
        model: of the same weights on every worker.
        examples: the training part, on the model's device.
    """
    device = examples.labels.device
    simulated = isinstance(spec.sync, SimulatedSync)
    mode = real(spec.sync)
    if isinstance(mode, AllGatherSync) and not simulated:
        randomness = Randomness(spec.seed, [dist.get_rank()])
        replica = Replica(model, spec.training, dist.get_world_size())
        return HookedGradients(spec, replica, examples), randomness
    crew: Crew = SimulatedCrew(spec.workers.count, _counting(spec)) if simulated else ProcessCrew(device)
    randomness = Randomness(spec.seed, crew.ranks)
    replica = Replica(model, spec.training, crew.workers)
    patterns = _patterns(spec, replica, crew)
    if not isinstance(mode, WeightsSync):
        return GradientsInRounds(crew, patterns, replica, examples, randomness), randomness
    replicas = [replica]
    replicas += [Replica(deepcopy(model), spec.training, crew.workers) for _ in crew.ranks[1:]]
    return LocalTraining(mode, crew, patterns, replicas, examples, randomness), randomness


def _counting(spec: RunSpec) -> Counting:
    """How the bytes of the mode that is simulated are counted."""
    mode = real(spec.sync)
    if not isinstance(mode, AllGatherSync):
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
    name: PatternName = mode.pattern if isinstance(mode, WeightsSync) else mode.mode
    back = getattr(mode, "back", None) or _returning(spec.compressor)
    method = spec.compressor
    if isinstance(mode, WeightsSync) and mode.exchange == "weights":
        method, back = _self_contained(method), _self_contained(back)
    return [_pattern(name, method, back, replace(setting, rank=rank)) for rank in crew.ranks]


def _pattern(name: PatternName, method: AnyMethod, back: AnyMethod, setting: Setting) -> Pattern:
    match name:
        case "allgather":
            return AllGather(method, setting)
        case "ring":
            return Ring(method, setting)
        case "parameter_server":
            return Sharded(method, back, setting, owners=1)
        case "sharded":
            return Sharded(method, back, setting, owners=setting.workers)


def _returning(method: AnyMethod) -> AnyMethod:
    """A sum's method on its way back: as the gradients', but their momentum is in it already."""
    return method.model_copy(update={"momentum": 0.0}) if getattr(method, "momentum", 0) else method


def _self_contained(method: AnyMethod) -> AnyMethod:
    """Packages of weights stand for themselves: nothing is carried over to the next."""
    return method.model_copy(update={"decay": 0.0}) if hasattr(method, "decay") else method
