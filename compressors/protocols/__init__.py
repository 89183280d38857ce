"""How a bucket's gradients become the same sum on every worker, with a class for each way.

`AllReduce` sends whole gradients, `AllGather` messages of compressed ones, `LowRank` torch's factors.
"""

from collections.abc import Mapping
from importlib import import_module

import torch.distributed as dist
from torch import Tensor

from ..bucket.feedback import Feedback
from ..exchange.buckets import Exchange
from ..method import CompressedMethod, Method, PowerSGD
from .all_gather import AllGather
from .all_reduce import AllReduce
from .base import Bucket, Fail, Reducer

__all__ = ["Bucket", "Reducer", "protocol_for"]


def protocol_for(
    config: Method,
    group: dist.ProcessGroup,
    parameters: Mapping[str, Tensor],
    known: Mapping[str, Tensor],
    fail: Fail,
    *,
    feedback: Feedback,
    exchange: Exchange,
    threads: int,
    hold_back_zeros: bool,
    whole: Mapping[str, int] | None = None,
) -> Reducer:
    """The protocol that a method needs.

    Args:
        config: the method.
        group: the process group that synchronizes.
        parameters: by name, in the model's order.
        known: all of the model, those that are not synchronized too.
        fail: called with the error that made a bucket fail.
        feedback: the worker's residuals and other memory, for messages.
        exchange: how messages are sent.
        threads: number of CPU threads for a pass.
        hold_back_zeros: send nothing for a parameter whose gradient is zero everywhere.
        whole: by name, the elements of what `parameters` are shards of; None where they are no shards.
    """
    if isinstance(config, PowerSGD):  # torch's hook is imported by those who use it
        made: Reducer = import_module(".low_rank", __name__).LowRank(config, group, parameters, known, fail)
        return made
    if not isinstance(config, CompressedMethod):
        return AllReduce(config, group, fail)
    return AllGather(
        config,
        group,
        parameters,
        fail,
        feedback=feedback,
        exchange=exchange,
        threads=threads,
        hold_back_zeros=hold_back_zeros,
        whole=whole,
    )
