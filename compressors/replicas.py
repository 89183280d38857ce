"""FSDP2's gradients: whole inside islands of fast links, compressed between islands.

    mesh = init_device_mesh("cuda", (islands, workers), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    state = compress_replicas(model, mesh["replicate"], "linear(8)")

Each island holds the model once. The exchange stands where HSDP's all-reduce would: each worker sends the
shard of gradients that its island has reduced to those that have the same shard in other islands.

FSDP2 reduces and scatters the gradients of a module's parameters inside the island, and then calls a hook
with what is left here: a flat tensor of the parameters' shards, each padded to the length of the longest.
They are copied into a tensor of our own, without the padding, and exchanged from there.

Exchanges run beside the backward pass. The hook leaves FSDP2 with zeros, and at the end of the pass what has
arrived is added to the gradients. Where a gradient is looked at earlier, by a hook that steps the optimizer
inside the backward pass, that module's exchange is waited for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.futures import Future

from .bucket.bucket import Bucket
from .bucket.compressor import is_exempt
from .bucket.feedback import zeros_once
from .bucket.layout import MemoryOrder
from .errors import CompressionError
from .exchange.addresses import transport_of
from .exchange.agreement import described
from .fsdp_internals import (
    BackwardPasses,
    DDPMeshInfo,
    FSDPMeshInfo,
    FSDPParam,
    NamedGroup,
    divided_after,
    has_all_reduce_hook,
    named_groups,
    wait_for_reduction,
)
from .methods import CompressedMethod, Method, read_config
from .reducers.base import Options
from .torch_internals import has_accumulation_hooks
from .worker_state import WorkerState


def compress_replicas(
    model: nn.Module,
    group: dist.ProcessGroup | DeviceMesh,
    method: Method | Mapping[str, Any] | str,
    *,
    threads: int | None = None,
    key: bytes | None = None,
) -> "ReplicaState":
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
        TypeError: the model is not FSDP2's, or the group is none.
        ValueError: the method is not valid (a line names its fields that are wrong), or cannot be used; there
            is no process group, this worker is alone in its group, or the group is not between islands; the
            model's mesh has a dimension for replicas; a pattern matches no parameter; the key is too short;
            or the number of threads is not a whole number of at least 1.
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


@dataclass(eq=False)
class _Unit:
    """What FSDP2 communicates at once: the parameters of a module, without those of units inside it."""

    index: int
    named: NamedGroup
    buffer: Tensor
    """Shards without padding, in the type that FSDP2 reduces; kept from step to step."""
    holds_back: bool = False
    """Whether it has what was reduced in the island alone (`set_requires_all_reduce`)."""

    def shards(self, flat: Tensor) -> tuple[list[FSDPParam], list[Tensor]]:
        """The parameters of which FSDP2 gives its hook elements here, and for each its shard, [numel].

        Raises CompressionError as `NamedGroup.reduced` does.
        """
        trained = self.named.reduced(flat.numel())
        padded = [parameter.padded_sharded_param_size.numel() for parameter in trained]
        sizes = [parameter.sharded_size.numel() for parameter in trained]
        shards = [share[:size] for share, size in zip(torch.split(flat, padded), sizes, strict=True)]
        here = [place for place, size in enumerate(sizes) if size]
        return [trained[place] for place in here], [shards[place] for place in here]

    def gather(self, shards: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """The shards one after the other in the buffer, added to what was held back, and their sizes.

        Raises CompressionError where what was held back is of other parameters.
        """
        sizes = [shard.numel() for shard in shards]
        if self.holds_back and self.buffer.numel() != sum(sizes):
            raise CompressionError(
                f"gradients of {', '.join(self.named.names.values())} were held back "
                "(set_requires_all_reduce(False)), and other parameters of them are trained now: freeze or "
                "thaw parameters after a pass with an all-reduce"
            )
        if self.buffer.numel() != sum(sizes) or self.buffer.dtype != shards[0].dtype:
            self.buffer = torch.empty(sum(sizes), dtype=shards[0].dtype, device=shards[0].device)
        rows = list(torch.split(self.buffer, sizes))
        (torch._foreach_add_ if self.holds_back else torch._foreach_copy_)(rows, list(shards))
        return self.buffer, sizes

    @property
    def divided_after(self) -> float:
        """What FSDP2 divides a reduced gradient by when the hook has returned."""
        return divided_after(self.named.group, self.buffer.dtype)


@dataclass
class _UnderWay:
    """A unit's exchange."""

    unit: _Unit
    parameters: list[FSDPParam]
    bucket: Bucket
    summed: Future[Tensor]


class ReplicaState(WorkerState):
    """The state of compression on one worker of an FSDP2 model; for attributes see also `WorkerState`.

    Ledgers count what the workers of its group exchange: those that have this worker's shard. If several
    backward passes are exchanged before gradients are cleared, each exchanges what it has added. They belong
    to one step until an optimizer steps one of the parameters, or some gradients are cleared.

    Attributes:
        failure: the error that made an exchange fail; `backward()` raises it.
    """

    _accumulating = "model.set_requires_gradient_sync(False)"

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        method: Method,
        *,
        threads: int | None = None,
        key: bytes | None = None,
    ) -> None:
        """Prepares to exchange the shards of a model, and hooks it; see `replicas.compress_replicas`."""
        if method.brings_exchange:
            raise ValueError(
                f"{method.kind} with FSDP2: torch's hook keeps its memory by DDP's buckets; use another "
                "method"
            )
        self._units = _units_of(model)
        first = self._units[0].named.group
        assert isinstance(first.mesh_info, FSDPMeshInfo)
        self._shards: dist.ProcessGroup = first.mesh_info.shard_process_group
        self._sharded = {
            name: parameter for unit in self._units for parameter, name in unit.named.names.items()
        }
        here = {
            name: torch.empty((), dtype=parameter.sharded_param.dtype, device=first.device).expand(
                parameter.sharded_size
            )
            for name, parameter in self._sharded.items()
        }  # of the shapes of gradients, and where these are: parameters may be on the CPU
        self._holds_back_zeros = any(
            getattr(unit.named.group, "reduce_scatter_unused_params", False) for unit in self._units
        )  # torch 2.13
        if both := set(dist.get_process_group_ranks(group)) & set(
            dist.get_process_group_ranks(self._shards)
        ) - {dist.get_rank()}:
            raise ValueError(
                f"the group holds rank {min(both)} of this worker's own island: it must be the mesh's other "
                "dimension, such as mesh['replicate']"
            )
        whole = {name: parameter.sharded_param.numel() for name, parameter in self._sharded.items()}
        super().__init__(
            method,
            group,
            Options("allgather", None, None, key, threads, self._holds_back_zeros, whole),
            known=here,
            parameters=here,
            optimized=lambda: {name: parameter.sharded_param for name, parameter in self._sharded.items()},
        )
        self.feedback.reorder({name: MemoryOrder.of(tensor) for name, tensor in here.items()})
        self._under_way: list[_UnderWay] = []
        self._passes = BackwardPasses(self._optimized, self._begin, self._finish)
        self._agreed = False
        for unit in self._units:
            module = unit.named.group.modules[0]
            assert isinstance(module, FSDPModule)
            module.set_all_reduce_hook(partial(self._reduced, unit))

    @property
    def _title(self) -> str:
        shard, shards = dist.get_rank(self._shards), dist.get_world_size(self._shards)
        return f"replica {dist.get_rank(self._group)} of {self.workers}, shard {shard} of {shards}"

    @property
    def is_first_worker(self) -> bool:
        return super().is_first_worker and dist.get_rank(self._shards) == 0

    def state_dict(self) -> dict[str, Any]:
        """What `WorkerState.state_dict` returns, under a key that says whose it is.

        So it passes for no other worker's, also where `torch.distributed.checkpoint` merges those of all.
        """
        self.residuals()
        return {self._title: super().state_dict()}

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, reshard: bool = False
    ) -> None:
        """Restores what `state_dict` returned on the same shard of the same replica.

        Args:
            state: this worker's; with `reshard`, those of this shard in all replicas that there were.
            reshard: see `WorkerState.load_state_dict`: whether it was another number of replicas.

        Raises:
            ValueError: it is of another worker, or as for `WorkerState.load_state_dict`.
        """
        if not isinstance(state, Mapping):
            _, _, shard = self._title.partition(", ")
            if others := [title for saved in state for title in saved if not title.endswith(f", {shard}")]:
                raise ValueError(f"the state of {others[0]}, this is {shard}: give those of this shard alone")
            super().load_state_dict([one for saved in state for one in saved.values()], reshard=reshard)
            return
        if self._title not in state:
            raise ValueError(
                f"the state of {', '.join(map(str, state)) or 'nobody'}, this is {self._title}: for another "
                "number of shards, save and load `residuals()` by torch.distributed.checkpoint"
            )
        super().load_state_dict(state[self._title])

    def residuals(self) -> dict[str, Any]:
        """Residuals and velocities for `torch.distributed.checkpoint`, by replica, kind and parameter.

        They are distributed as their parameters are, so that another number of shards can load them, and are
        the live ones: `dcp.load` fills them in place. What threshold policies remember is not among them, and
        begins anew. Replicas are told apart, and must be as many as before.
        """
        distributed: dict[str, dict[str, DTensor]] = {}
        if isinstance(self.method, CompressedMethod):
            method, exempt = self.method, self.method.exempt
            sizes = {name: parameter.sharded_param.numel() for name, parameter in self._sharded.items()}
            names = [name for name, size in sizes.items() if not is_exempt(exempt, name, size)]
            parts = {
                "residuals": self.feedback.residuals if method.keeps_residuals else None,
                "velocities": self.feedback.velocities if method.momentum_correction else None,
            }
            for what, tensors in parts.items():
                if tensors is not None:
                    distributed[what] = {name: self._distributed(name, tensors) for name in names}
        return {f"replica {dist.get_rank(self._group)}": distributed}

    def _distributed(self, name: str, tensors: dict[str, Tensor]) -> DTensor:
        parameter = self._sharded[name].sharded_param
        assert isinstance(parameter, DTensor)
        return DTensor.from_local(
            zeros_once(tensors, name, self._known[name]).view(self._known[name].shape),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def _reduced(self, unit: _Unit, flat: Tensor) -> None:
        """What FSDP2 calls when a unit's gradients are reduced in the island."""
        try:
            parameters, shards = unit.shards(flat)
            if unit.named.group.all_reduce_grads:
                self._passes.on_reduction()
        except CompressionError as problem:
            raise self._fail(problem) from None
        if not shards:
            return
        if any(exchange.unit is unit for exchange in self._under_way):  # the module was used several times
            self._require_no_memory_of_steps()
            unit.buffer = torch.empty(0)
        try:
            buffer, sizes = unit.gather(shards)
        except CompressionError as problem:
            raise self._fail(problem) from None
        unit.holds_back = not unit.named.group.all_reduce_grads
        if unit.holds_back:
            flat.zero_()
            return
        is_awaited = any(has_accumulation_hooks(parameter.sharded_param) for parameter in parameters)
        names = [unit.named.names[parameter] for parameter in parameters]
        series = self._passes.count * len(self._parameters)
        bucket = Bucket(unit.index, buffer, names, sizes, is_awaited=is_awaited, series=series)
        exchange = _UnderWay(unit, parameters, bucket, self._reduce(bucket, self.gradient_scale))
        if is_awaited:
            self._arrived(exchange)
            torch._foreach_copy_(shards, list(bucket.shares))
        else:
            flat.zero_()
            self._under_way.append(exchange)

    def _begin(self, uncleared: set[str]) -> None:
        """Begins a backward pass with its first exchange; all workers first check that they agree."""
        self._begin_pass(uncleared)
        if not self._agreed:
            self._check_agreement_and_connect(self._description())
            self._agreed = True

    def _description(self) -> dict[str, str]:
        """What must be equal on all replicas, weights too: FSDP2 does not send them around."""
        weights = {
            f"weights of {name}": str(_checksum(_local(parameter.sharded_param)))
            for name, parameter in self._sharded.items()
        }
        shard = f"{dist.get_rank(self._shards)} of {dist.get_world_size(self._shards)}"
        units = {f"module {unit.index}": ", ".join(unit.named.names.values()) for unit in self._units}
        unused = {"set_reduce_scatter_unused_params": str(self._holds_back_zeros)}
        return {"shard": shard, **unused, **described(self._parameters), **units, **weights}

    @torch.no_grad()
    def _finish(self) -> None:
        """Ends a backward pass, after FSDP2 has: adds what has arrived to the gradients."""
        self._end_pass()
        under_way, self._under_way = self._under_way, []
        for exchange in under_way:
            self._arrived(exchange)
            group, factor = exchange.unit.named.group, exchange.unit.divided_after
            wait_for_reduction(group)
            if factor != 1:
                exchange.bucket.buffer.div_(factor)
            for parameter, share in zip(exchange.parameters, exchange.bucket.shares, strict=True):
                gradient = _local(parameter.sharded_param.grad)
                gradient.add_(share.view(gradient.shape).to(gradient))
        if self.method.nonfinite == "skip":
            self._skip_together()

    def _arrived(self, exchange: _UnderWay) -> None:
        """Waits for an exchange. As in HSDP, a gradient divide factor stands for replicas, too."""
        try:
            exchange.summed.wait()
        except Exception:
            if self.failure is None:
                raise
            raise self.failure from None
        if exchange.unit.named.group.gradient_divide_factor is not None and self.method.reduction == "mean":
            exchange.bucket.buffer.mul_(self.workers)

    def _skip_together(self) -> None:
        """A step that one shard leaves out is left out by all of the island."""
        device = transport_of(self._shards, self._units[0].named.group.device)
        skips = torch.tensor([int(self.last_step.skipped)], device=device)
        with self._reducer.noting_failures():
            dist.all_reduce(skips, dist.ReduceOp.MAX, group=self._shards)
        if skips.item() and not self.last_step.skipped:
            self.last_step.skip("a parameter of another shard", -1)


def _units_of(model: nn.Module) -> list[_Unit]:
    """What FSDP2 communicates at once, in the model's order.

    Raises:
        TypeError: no module is FSDP2's.
        ValueError: their mesh has a dimension for replicas already.
        RuntimeError: one has a hook already.
    """
    groups = named_groups(model)
    if any(isinstance(named.group.mesh_info, DDPMeshInfo) for named in groups):
        raise ValueError(
            "the model's mesh has a dimension for replicas, over which FSDP2 itself reduces whole gradients: "
            "give fully_shard the shard dimension alone, such as mesh=mesh['shard']"
        )
    if any(has_all_reduce_hook(named.group) for named in groups):
        raise RuntimeError("the model has an all-reduce hook already: call compress_replicas once")
    return [
        _Unit(index, named, torch.empty(0, device=named.group.device)) for index, named in enumerate(groups)
    ]


def _local(distributed: Tensor | None) -> Tensor:
    assert isinstance(distributed, DTensor)
    return distributed.to_local().detach()


def _checksum(weights: Tensor) -> int:
    """The same for the same bits, whatever adds them up."""
    return int(weights.contiguous().view(torch.uint8).sum(dtype=torch.int64)) if weights.numel() else 0
