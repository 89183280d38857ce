"""What does not work in the mode `async`; checked when a spec is read, without torch."""

from ...training.config import Sgd, TrainingConfig
from ..config import AsyncSync, SimulatedSync, SyncConfig, real


def check_asynchronous(sync: SyncConfig, training: TrainingConfig, workers: int) -> None:
    """Refuses what the mode cannot do.

    Args:
        sync: any mode; other modes than async are left alone.
        training: how to train.
        workers: how many.

    Raises:
        ValueError: it names the field, its value and what would do.
    """
    mode = real(sync)
    if not isinstance(mode, AsyncSync):
        return
    simulated = isinstance(sync, SimulatedSync)
    where = "sync.of" if simulated else "sync"
    asynchronous = f"with {where}.mode = async"
    optimizer = training.optimizer
    if not isinstance(optimizer, Sgd):
        raise ValueError(
            f"training.optimizer.kind = {optimizer.kind} {asynchronous}: workers apply every update as it "
            "comes, and their sums must not depend on the order; use sgd with momentum: 0"
        )
    if optimizer.momentum:
        raise ValueError(
            f"training.optimizer.momentum = {optimizer.momentum:g} {asynchronous}: momentum would depend on "
            "the order in which updates come; use 0, and compressor.momentum for each worker's own"
        )
    if training.clip.norm and training.clip.of == "mean":
        raise ValueError(
            f"training.clip.of = mean {asynchronous}: no worker has the mean of the gradients; use worker"
        )
    if training.precision == "fp16":
        raise ValueError(
            f"training.precision = fp16 {asynchronous}: workers would have to agree on the loss's scale; use "
            "fp32 or bf16"
        )
    if mode.step_times and len(mode.step_times) != workers:
        raise ValueError(
            f"{where}.step_times = {list(mode.step_times)}: there must be one for each worker, and "
            f"workers.count = {workers}"
        )
    if mode.delay[0] > mode.delay[1]:
        raise ValueError(
            f"{where}.delay = {list(mode.delay)}: the lower bound comes first, then the upper one"
        )
    if not simulated and not mode.follow_schedule:
        for field in ("step_times", "delay", "schedule_seed"):
            if getattr(mode, field) != AsyncSync.model_fields[field].default:
                raise ValueError(
                    f"sync.{field} without a schedule: real workers run at their own speed; add "
                    "sync.follow_schedule: true, or simulate the mode"
                )
