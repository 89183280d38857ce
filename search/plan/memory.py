"""The memory of a worker that depends on the way to train, in bytes; without activations."""

from taugrad.platform.synchronization.config import RealSync

from .calibrated import Calibration, MethodWork

_FLOAT = 4


def worker_bytes(
    calibration: Calibration, work: MethodWork, sync: RealSync, workers: int, island: int = 1
) -> float:
    """Weights, gradients and DDP's buckets, the optimizer's state, residuals, and messages of all workers.

    Args:
        calibration: of the model.
        work: of the method.
        sync: the mode.
        workers: how many.
        island: how many of them share one copy of the model.
    """
    whole = _FLOAT * calibration.parameters
    if island > 1:
        # A shard of each: weights, gradients and the copy that is exchanged; and weights that are gathered.
        messages = work.nbytes if work.all_reduces else workers // island * work.nbytes
        return whole + (3 * whole + calibration.optimizer_bytes + work.kept_bytes + messages) / island
    kept = 2 * whole + calibration.optimizer_bytes + work.kept_bytes
    hooked = sync.exchanges == "buckets"
    if hooked:
        kept += whole  # the buckets
    if sync.is_local:
        kept += 2 * whole  # what was agreed on, and the difference to it
        if sync.outer_momentum:
            kept += whole
    pattern = sync.pattern_name
    if pattern in ("sharded", "parameter_server"):
        # The sum's own residual: of all elements where worker 0 has it, of 1/N of them with shards.
        share = 1 / workers if pattern == "sharded" else 1.0
        kept += whole + share * work.kept_bytes
    if work.all_reduces and hooked:
        return kept + work.nbytes
    if pattern == "ring":
        messages = 2 * work.nbytes
    elif pattern == "sharded":
        messages = 3 * work.nbytes  # the parts, those of the others, and the sums
    else:
        messages = workers * work.nbytes
    return kept + messages
