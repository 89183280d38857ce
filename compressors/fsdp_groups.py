"""FSDP2's parameter groups: what it communicates at once, with the names of the parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from .errors import CompressionError
from .names import plain_names


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
