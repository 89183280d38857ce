"""Builds what follows the link from a spec's `sync.adapt`."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from taugrad.compressors.method import Method
from taugrad.compressors.method.sparse import ThresholdedMethod, WholeValues

from ..config import Adapt
from .adapter import Adapter
from .choice import Chooser


def build_adapter(
    adapt: Adapt | None,
    method: Method,
    device: torch.device,
    aim_at: Callable[[float], float],
    local_steps: int = 1,
) -> Adapter | None:
    """What follows the link as the spec says; None where it says nothing.

    Args:
        adapt: the bounds.
        method: whose share of elements is changed; `refusals` has seen it.
        device: where this process trains.
        aim_at: changes it, and returns what it comes to.
        local_steps: steps from one exchange to the next; 0 where epochs decide.
    """
    if adapt is None:
        return None
    assert method.aim is not None
    assert isinstance(method, ThresholdedMethod | WholeValues), "others have no share to aim at"
    transport = device if dist.get_backend() == "nccl" else torch.device("cpu")
    return Adapter(Chooser(adapt, method.aim, method.value_bits), local_steps, transport, aim_at)
