"""The DDP communication hook: two lines in your training script.

    state = CompressionState(ddp, "wgt(density(0.01)) | golomb_rice")
    ddp.register_comm_hook(state, compressed_allgather)

`protocols/` decides how the workers' gradients are combined, with a class for each way.
"""

from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, which stubs do not name
from torch.futures import Future

from .state import CompressionState


def compressed_allgather(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    """Synchronizes one bucket; register it with `ddp.register_comm_hook(state, compressed_allgather)`.

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
