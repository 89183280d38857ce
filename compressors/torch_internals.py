"""torch's private calls that compressors make, without those into FSDP2 (`fsdp_internals`, slow to import).

No other module calls what torch does not document. `TRIED` says what a new version may break.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (  # torch.distributed has them, which stubs do not name
    GradBucket,
    PrefixStore,
    Store,
    TCPStore,
)
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["GradBucket", "PrefixStore", "Store", "TCPStore", "TorchDispatchMode"]

TRIED = {
    "torch._C:_current_graph_task_id": "2.13",
    "torch.autograd:Variable._execution_engine.queue_callback": "2.13",
    "torch:_debug_has_internal_overlap": "2.13",
    "torch:Tensor._post_accumulate_grad_hooks": "2.13",
    "torch._C._distributed_c10d:GradBucket": "2.13",
    "torch._C._distributed_c10d:PrefixStore.underlying_store": "2.13",
    "torch._C._distributed_c10d:Reducer._get_zeros_like_grad_buckets": "2.13",
    "torch.distributed.distributed_c10d:_get_default_store": "2.13",
    "torch.distributed:ProcessGroup._get_backend": "2.13",
    "torch.nn.parallel:DistributedDataParallel._has_rebuilt_buckets": "2.13",
    "torch.nn.parallel:DistributedDataParallel._use_python_reducer": "2.13",
    "torch:UntypedStorage._cdata": "2.13",
    "torch.utils._python_dispatch:TorchDispatchMode": "2.13",
}
"""Where each private name is, and the version of torch that it was tried with last."""


def backward_id() -> int:
    """The number of the backward pass that runs in this thread: each call of `backward()` has its own."""
    return torch._C._current_graph_task_id()


def after_backward(call: Callable[[], None]) -> None:
    """Calls a function at the end of the backward pass that runs in this thread."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def has_accumulation_hooks(parameter: Tensor) -> bool:
    """Whether somebody looks at a parameter's gradient once it is accumulated."""
    return bool(parameter._post_accumulate_grad_hooks)


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether elements of a strided tensor share memory, as those of an expanded one do."""
    return torch._debug_has_internal_overlap(tensor) == 1


def storage_id(tensor: Tensor) -> int:
    """The number of a tensor's storage, of a tensor without values, too."""
    return int(tensor.untyped_storage()._cdata)


def default_store() -> Store:
    """The store of the default process group."""
    return _get_default_store()


def underlying(store: Store) -> Store:
    """A store without its prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def backend_options(group: dist.ProcessGroup, device: torch.device) -> object:
    """The options of a group's backend for a device; None where it has none."""
    return getattr(group._get_backend(device), "options", None)


def has_rebuilt_buckets(ddp: DistributedDataParallel) -> bool:
    """Whether DDP has made its buckets anew, as it does after the first step."""
    return bool(ddp._has_rebuilt_buckets)


def reduces_in_python(ddp: DistributedDataParallel) -> bool:
    """Whether DDP was made with `optimize_ddp = "python_reducer"`: it has no buckets then."""
    return bool(getattr(ddp, "_use_python_reducer", False))


def buckets_of(ddp: DistributedDataParallel) -> list[GradBucket]:
    """DDP's buckets, with zeros for gradients; raises RuntimeError where it expects sparse ones."""
    return ddp.reducer._get_zeros_like_grad_buckets()
