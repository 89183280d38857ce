"""The front door for FSDP2: whole gradients inside islands of fast links, compressed ones between islands.

    mesh = init_device_mesh("cuda", (islands, workers), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    state = compress_replicas(model, mesh["replicate"], "linear(8)")

Each island holds the model once. The exchange stands where HSDP's all-reduce would: each worker sends the
shard of gradients that its island has reduced to those that have the same shard in other islands
(`replica_state.py`).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from .method import Method, read_config
from .replica_state import ReplicaState


def compress_replicas(
    model: nn.Module,
    group: dist.ProcessGroup | DeviceMesh,
    method: Method | Mapping[str, Any] | str,
    *,
    threads: int | None = None,
    key: bytes | None = None,
) -> ReplicaState:
    """Compresses what replicas of an FSDP2 model exchange, from the next backward pass on.

    All workers must call this, and begin with equal weights, as with HSDP; the first exchange checks that.

    Args:
        model: under `fully_shard` over the shard dimension alone, or what holds it, such as a compiled model.
        group: the workers that hold this worker's shard, one in each island: the mesh's other dimension.
        method: a method, its dictionary, or its line such as `wgt(density(0.01)) | golomb_rice`; not
            `powersgd`.
        threads: number of CPU threads for a pass; by default as many as torch uses. No result depends on it.
        key: the same on all workers, 16 bytes or more, if messages are to be encrypted.

    Returns:
        The state: what was sent (`last_step`, `totals`), and what belongs into a checkpoint (`state_dict`, or
        `residuals` for torch.distributed.checkpoint).

    Raises:
        pydantic.ValidationError: the method is not valid; the message names the field.
        TypeError: the model is not FSDP2's, or the group is none.
        ValueError: there is no process group, this worker is alone in its group, or the group is not between
            islands; the model's mesh has a dimension for replicas; the method cannot be used; a pattern
            matches no parameter; the key is too short; or the number of threads is not a whole number of at
            least 1.
        RuntimeError: the model has a hook already, or torch is older than 2.8.
    """
    if not dist.is_initialized():
        raise ValueError("there is no process group: call torch.distributed.init_process_group before")
    if not hasattr(FSDPModule, "set_all_reduce_hook"):
        raise RuntimeError(f"compress_replicas needs torch 2.8 or newer; this is {torch.__version__}")
    if isinstance(group, DeviceMesh):
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group is of {type(group).__name__}: it must be a process group that this worker is in"
        )
    if dist.get_world_size(group) == 1:
        raise ValueError("a group of one: this worker's shard has no replica to exchange with")
    return ReplicaState(model, group, read_config(method), threads=threads, key=key)
