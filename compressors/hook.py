"""The front door for DistributedDataParallel: one line in your training script.

    state = compress_gradients(model, "wgt(density(0.01)) | golomb_rice")

`state.py` follows DDP's buckets; `protocols/` exchanges what is in them, with a class for each way.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, which stubs do not name
from torch.amp import GradScaler
from torch.futures import Future

from .exchange.patterns import PatternName
from .method import Method
from .state import CompressionState, ddp_in


def compress_gradients(
    model: Any,
    method: Method | Mapping[str, Any] | str,
    *,
    scaler: GradScaler | None = None,
    threads: int | None = None,
    pattern: PatternName | None = None,
    sites: Sequence[Sequence[int]] | None = None,
    key: bytes | None = None,
) -> CompressionState:
    """Compresses what a DDP model synchronizes, from the next backward pass on.

    Args:
        model: a DistributedDataParallel model, or what holds one: compiled, or in a wrapper of Fabric's or
            Accelerate's.
        method: a method, its dictionary, or its line such as `wgt(density(0.01)) | golomb_rice`.
        scaler: the loss's scaler, if there is one (see `CompressionState`).
        threads: see `CompressionState`.
        pattern: see `CompressionState`.
        sites: see `CompressionState`.
        key: see `CompressionState`.

    Returns:
        The state: what was sent (`last_step`, `totals`), and what belongs into a checkpoint (`state_dict`).

    Raises:
        TypeError: there is no DDP model in it; the message says what was given instead.
        ValueError: there are several, each of which needs a call of its own; or as for `CompressionState`.
        RuntimeError: the model has a hook already, or its first backward pass has begun.
    """
    ddp = ddp_in(model)
    state = CompressionState(
        ddp, method, scaler=scaler, threads=threads, pattern=pattern, sites=sites, key=key
    )
    ddp.register_comm_hook(state, compressed_allgather)
    return state


def compressed_allgather(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    """Synchronizes one bucket: the hook itself, for those who make the state and register it in two lines.

    Returns:
        A future of the bucket's buffer, which holds the mean (or sum) of all workers' updates.

    Raises:
        NonFiniteGradient: through the future, on every worker, if a gradient holds NaN or Inf and the
            configuration does not say `nonfinite: skip`.
        CorruptMessage: through the future, where a message is damaged or does not fit the bucket.
        WorkersDisagree: in the first step, on every worker, where their methods, exchanges or models differ.
        CompressionError: on every worker, where the bucket is of another model than the state's, a gradient
            is sparse, or the method's momentum or decay would count twice in a step.
        PeerLost: on every worker, where one is gone, or has been silent for longer than the timeout of the
            process group allows.
    """
    return state.synchronize(bucket)
