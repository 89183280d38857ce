"""Which runs cannot follow a link; checked when a spec is read, without torch."""

from taugrad.compressors.method import Method

from ...training.config import TrainingConfig
from ..config import AllGatherSync, SimulatedSync, SyncConfig, WeightsSync, real

_AIMED = "tau: density(0.01) or allocate(0.01), or topk or chunked_topk, without a warm-up"


def check_adapt(sync: SyncConfig, method: Method, training: TrainingConfig, workers: int) -> None:
    """Refuses `sync.adapt` if the run cannot follow its link.

    Args:
        sync: any mode; what has no `adapt` is left alone.
        method: what is compressed with.
        training: how to train.
        workers: how many there are.

    Raises:
        ValueError: it names the field, its value and what would do.
    """
    mode = real(sync)
    if not isinstance(mode, AllGatherSync | WeightsSync) or mode.adapt is None:
        return
    if isinstance(sync, SimulatedSync):
        raise ValueError(
            "sync.of.adapt with sync.mode = simulated: simulated workers have no network to follow; leave it "
            "out"
        )
    if workers == 1:
        raise ValueError(
            "sync.adapt with workers.count = 1: there is no other worker; leave it out, or use more workers"
        )
    if method.aim is None:
        raise ValueError(
            f"sync.adapt with compressor = {method}: it has no density that could change; use {_AIMED}"
        )
    least, most = mode.adapt.density
    if not least <= method.aim <= most:
        raise ValueError(
            f"sync.adapt.density = [{least:g}, {most:g}] with compressor = {method}: a run starts with the "
            f"compressor's own density, {method.aim:g}, which must be within these bounds"
        )
    if isinstance(mode, WeightsSync):
        _check_steps(mode)
    elif mode.adapt.local_steps is not None:
        raise ValueError(
            f"sync.adapt.local_steps = {[*mode.adapt.local_steps]} with sync.mode = {mode.mode}: workers "
            "exchange after every step there; leave it out, or use sync.mode: weights"
        )
    elif training.clip.norm and training.clip.of == "worker":
        raise ValueError(
            f"training.clip.of = worker with sync.adapt and sync.mode = {mode.mode}: gradients are complete "
            "before any is sent, so nothing overlaps with the backward pass; use clip.of: mean"
        )


def _check_steps(mode: WeightsSync) -> None:
    if not mode.every:
        raise ValueError(
            "sync.adapt with sync.every = 0: exchanges at the ends of epochs are too few to follow a link; "
            "use sync.every: 1 or more"
        )
    assert mode.adapt is not None
    bounds = mode.adapt.local_steps
    if bounds is not None and not bounds[0] <= mode.every <= bounds[1]:
        raise ValueError(
            f"sync.adapt.local_steps = {[*bounds]} with sync.every = {mode.every}: a run starts with "
            "sync.every steps, which must be within these bounds"
        )
