"""From a spec to the workers of this process, for hybrid parallelism."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from ...spec import RunSpec
from ...tasks.base import Task
from ...training.generators import Randomness
from ...training.replica import Replica
from ..config import HybridSync, real
from ..patterns import Pattern
from ..rounds import Crew
from .mode import HybridTraining
from .parts import two_parts
from .wire import Wire
from .worker import Manner, Worker

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def build_hybrid(
    spec: RunSpec,
    model: nn.Module,
    task: Task,
    device: torch.device,
    crew: Crew,
    patterns: Callable[[Replica], Sequence[Pattern]],
) -> tuple[HybridTraining, Randomness]:
    """The workers of this process; torch's process group must exist.

    Args:
        spec: the run.
        model: of the same weights on every worker.
        task: what it is trained for.
        device: the model's.
        crew: of the spec's workers.
        patterns: makes the convolutions' synchronization, one pattern for each of the crew's ranks.

    Raises:
        ValueError: the model does not name its two parts, or cannot be cut.
    """
    mode = real(spec.sync)
    assert isinstance(mode, HybridSync)
    parts = two_parts(model)
    randomness = Randomness(spec.seed, crew.ranks)
    replica = Replica(parts.convolutional, task, spec.training, crew.workers)
    manner = Manner(
        scheme=mode.scheme,
        wire=Wire(_TYPES[mode.activations]),
        per_worker=mode.fc_batch == "per_worker",
        summed=spec.compressor.reduction == "sum",
        seed=spec.seed,
    )
    workers = [Worker(parts, task, spec.training, manner, rank, crew.workers) for rank in crew.ranks]
    sync = HybridTraining(
        crew,
        patterns(replica),
        model,
        parts,
        replica,
        workers,
        randomness,
        per_worker=manner.per_worker,
        refuses=spec.compressor.nonfinite == "refuse",
    )
    return sync, randomness
