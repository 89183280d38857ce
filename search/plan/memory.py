"""The memory of a worker that depends on the way to train, in bytes; without activations."""

from taugrad.compressors.exchange.buckets import room_for
from taugrad.platform.synchronization.boxes import buffer_bytes
from taugrad.platform.synchronization.config import AllGatherSync, RealSync, WeightsSync

from .calibrated import Calibration, MethodWork

_FLOAT = 4


def worker_bytes(calibration: Calibration, work: MethodWork, sync: RealSync, workers: int) -> float:
    """Weights, gradients and DDP's buckets, the optimizer's state, residuals, and messages of all workers.

    Args:
        calibration: of the model.
        work: of the method.
        sync: the mode.
        workers: how many.
    """
    whole = _FLOAT * calibration.parameters
    kept = 2 * whole + calibration.optimizer_bytes + work.kept_bytes
    others, hooked = workers - 1, isinstance(sync, AllGatherSync)
    if hooked:
        kept += whole  # the buckets
    if isinstance(sync, WeightsSync):
        kept += 2 * whole  # what was agreed on, and the difference to it
        if sync.outer.momentum:
            kept += whole
    pattern = sync.pattern if isinstance(sync, WeightsSync) else sync.mode
    if pattern in ("sharded", "parameter_server"):
        # The sum's own residual: of all elements where worker 0 has it, of 1/N of them with shards.
        share = 1 / workers if pattern == "sharded" else 1.0
        kept += whole + share * work.kept_bytes
    if work.all_reduces and hooked:
        return kept + work.nbytes
    if isinstance(sync, AllGatherSync):
        messages = others * sum(room_for(round(each.nbytes)) + each.nbytes for each in work.buckets)
    elif pattern == "ring":
        messages = 2 * work.nbytes
    elif pattern == "sharded":
        messages = 2 * (work.nbytes + buffer_bytes(workers, work.nbytes / workers))
    else:
        messages = workers * work.nbytes
        if isinstance(sync, WeightsSync) or pattern == "parameter_server":
            messages += buffer_bytes(workers, work.nbytes)
    return kept + messages
