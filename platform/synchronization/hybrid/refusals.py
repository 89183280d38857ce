"""What does not work with hybrid parallelism; checked when a spec is read, without torch."""

from taugrad.compressors.method import Method

from ...training.config import Lamb, Lars, TrainingConfig
from ..config import HybridSync, SimulatedSync, SyncConfig, real


def check_hybrid(sync: SyncConfig, method: Method, training: TrainingConfig) -> None:
    """Refuses what the mode cannot do.

    Args:
        sync: any mode; other modes than hybrid are left alone.
        method: what the convolutions' gradients are compressed with.
        training: how to train.

    Raises:
        ValueError: it names the field, its value and what would do.
    """
    mode = real(sync)
    if not isinstance(mode, HybridSync):
        return
    where = "sync.of" if isinstance(sync, SimulatedSync) else "sync"
    hybrid = f"with {where}.mode = hybrid"
    if mode.fc_batch == "per_worker" and mode.scheme == "a":
        raise ValueError(
            f"{where}.fc_batch = per_worker with {where}.scheme = a: scheme a has all workers' examples at "
            "once; use b or c, or joined"
        )
    if mode.fc_batch == "per_worker" and method.nonfinite == "skip":
        raise ValueError(
            f"compressor.nonfinite = skip with {where}.fc_batch = per_worker: a step of the fully connected "
            "layers cannot be taken back; use refuse, or joined"
        )
    if isinstance(training.optimizer, Lars | Lamb):
        raise ValueError(
            f"training.optimizer.kind = {training.optimizer.kind} {hybrid}: it needs the norms of whole "
            "layers, of which a worker has a part; use sgd, adam or adamw"
        )
    if training.clip.norm:
        raise ValueError(
            f"training.clip.norm = {training.clip.norm:g} {hybrid}: no worker has the whole gradient; use 0"
        )
    if training.precision == "fp16":
        raise ValueError(
            f"training.precision = fp16 {hybrid}: gradients of activations are exchanged without the loss's "
            "scale; use fp32 or bf16"
        )
    if training.accumulate > 1:
        raise ValueError(
            f"training.accumulate = {training.accumulate} {hybrid}: turns cut the batch already; use 1, "
            f"and {where}.scheme = b or c"
        )
    if training.compile:
        raise ValueError(f"training.compile = true {hybrid}: the model is run in two parts; use false")
    if training.find_unused_parameters:
        raise ValueError(
            f"training.find_unused_parameters = true {hybrid}: every layer is used in each step; use false"
        )
