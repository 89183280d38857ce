"""FSDP2's parameter groups, with the names of their parameters, its backward passes, and its private calls.

No other module calls what FSDP2 does not document. `TRIED` says what a new version may break.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo, HSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor

from .bucket.accumulated import nonzero_gradients
from .errors import CompressionError
from .names import plain_names
from .torch_internals import after_backward, backward_id

_PACKAGE = "torch.distributed.fsdp._fully_shard"
TRIED = {
    "torch.distributed.fsdp:FSDPModule._get_fsdp_state": "2.13",
    f"{_PACKAGE}._fsdp_api:ReduceScatter": "2.13",
    f"{_PACKAGE}._fsdp_collectives:DefaultReduceScatter": "2.13",
    f"{_PACKAGE}._fsdp_collectives:_get_gradient_divide_factors": "2.13",
    f"{_PACKAGE}._fsdp_common:DDPMeshInfo.replicate_process_group": "2.13",
    f"{_PACKAGE}._fsdp_common:FSDPMeshInfo": "2.13",
    f"{_PACKAGE}._fsdp_common:HSDPMeshInfo": "2.13",
    f"{_PACKAGE}._fsdp_param:FSDPParam.padded_sharded_param_size": "2.13",
    f"{_PACKAGE}._fsdp_param:FSDPParam._module_info": "2.13",
    f"{_PACKAGE}._fsdp_param_group:FSDPParamGroup._all_reduce_hook": "2.13",
    f"{_PACKAGE}._fsdp_param_group:FSDPParamGroup._post_reduce_event": "2.13",
    f"{_PACKAGE}._fsdp_param_group:FSDPParamGroup._reduce_scatter_comm": "2.13",
    f"{_PACKAGE}._fsdp_param_group:FSDPParamGroup._reduce_scatter_process_group": "2.13",
}
"""Where each private name is, and the version of torch that it was tried with last."""

__all__ = ["DDPMeshInfo", "FSDPMeshInfo", "FSDPParam", "FSDPParamGroup", "HSDPMeshInfo"]


@dataclass(frozen=True, eq=False)
class NamedGroup:
    """The parameters of a module, without those of modules inside it that have a group of their own."""

    group: FSDPParamGroup
    names: Mapping[FSDPParam, str]
    """Without wrappers."""

    def reduced(self, elements: int) -> list[FSDPParam]:
        """The parameters whose gradients FSDP2 reduces at once; a shard of all has so many elements, padded.

        Raises:
            CompressionError: a parameter had no gradient, so that it is not known which ones there are.
        """
        trained = [parameter for parameter in self.group.fsdp_params if parameter.sharded_param.requires_grad]
        expected = sum(parameter.padded_sharded_param_size.numel() for parameter in trained)
        if expected != elements:
            raise CompressionError(
                f"a gradient of {elements} elements for "
                f"{', '.join(self.names[parameter] for parameter in trained)}, which have {expected}: a "
                "parameter was not used, so call model.set_reduce_scatter_unused_params(True), or freeze it"
            )
        return trained


def named_groups(model: nn.Module) -> list[NamedGroup]:
    """The parameter groups of a model, in its order.

    Raises:
        TypeError: no module is FSDP2's.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    states = [module._get_fsdp_state() for module in modules if isinstance(module, FSDPModule)]
    groups = dict.fromkeys(group for state in states for group in _groups_of(state))
    if not groups:
        raise TypeError(
            f"model is of {type(model).__name__}: it must have parameters under "
            "torch.distributed.fsdp.fully_shard (FSDP2; not FullyShardedDataParallel, and for DDP there is "
            "compress_gradients)"
        )
    plain = plain_names(model)
    prefixes = {id(module): f"{name}." if name else "" for name, module in model.named_modules()}
    named = []
    for group in groups:
        names = {}
        for parameter in group.fsdp_params:
            name = prefixes[id(parameter._module_info.module)] + parameter._module_info.param_name
            names[parameter] = plain.get(name, name)
        named.append(NamedGroup(group, names))
    return named


def _groups_of(state: Any) -> Sequence[FSDPParamGroup]:
    """Returns a module's parameter groups; before torch 2.12 it has one at most."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups  # type: ignore[no-any-return]
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def divided_after(group: FSDPParamGroup, dtype: torch.dtype) -> float:
    """What FSDP2 divides a reduced gradient of a dtype by when an all-reduce hook has returned."""
    _, factor, *_ = _get_gradient_divide_factors(
        group._reduce_scatter_process_group,
        None,
        dtype,
        group.device.type,
        group.gradient_divide_factor,
        group.force_sum_reduction_for_comms,
    )
    return 1.0 if factor is None else factor


def has_all_reduce_hook(group: FSDPParamGroup) -> bool:
    """Whether a group has a hook for its all-reduce."""
    return group._all_reduce_hook is not None


def has_custom_reduce_scatter(group: FSDPParamGroup) -> bool:
    """Whether a group reduces otherwise than FSDP2 does by itself."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import (  # noqa: PLC0415 - since torch 2.9
        DefaultReduceScatter,
    )

    return not isinstance(group._reduce_scatter_comm, DefaultReduceScatter)


def wait_for_reduction(group: FSDPParamGroup) -> None:
    """Lets the current stream wait until what FSDP2 reduced last is added to the gradients."""
    if group._post_reduce_event is not None:
        group.device_handle.current_stream().wait_event(group._post_reduce_event)


class BackwardPasses:
    """The backward passes of one model, one after the other: it has hooks for what it reduces, and no others.

    Attributes:
        count: how many have begun.
    """

    def __init__(
        self,
        parameters: Callable[[], Mapping[str, Tensor]],
        begin: Callable[[set[str]], None],
        finish: Callable[[], None],
    ) -> None:
        """Follows a model's passes.

        Args:
            parameters: returns them by name, sharded, as optimizers have them.
            begin: called with the names of those whose gradients hold what an earlier pass has left.
            finish: called at the end of a pass, after FSDP2's own work.
        """
        self._parameters, self._begin, self._finish = parameters, begin, finish
        self._task: int | None = None
        """The pass that is under way."""
        self.count = 0

    def on_reduction(self) -> None:
        """Begins a pass with its first reduction.

        Raises CompressionError inside another pass, or after one that failed.
        """
        task = backward_id()
        if self._task == task:
            return
        if self._task is not None:
            raise CompressionError(
                "a backward pass inside another, or after one that failed: checkpoint activations with "
                "use_reentrant=False; after a failure, go on from a checkpoint"
            )
        self._task = task
        self.count += 1
        gradients = {name: parameter.grad for name, parameter in self._parameters().items()}
        local = {name: grad.to_local() for name, grad in gradients.items() if isinstance(grad, DTensor)}
        self._begin(set(nonzero_gradients(local)))
        after_backward(self._end)

    def _end(self) -> None:
        self._task = None
        self._finish()
