"""Names of parameters without wrappers, and the patterns and saved tensors that fit them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from .lazy import torch
from .ops.array import Tensor

_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Where torch.compile, activation checkpointing and FSDP keep what they wrap."""
_SHOWN = 6
"""Names of parameters that a message lists; the others are counted."""


def plain_names(model: torch.nn.Module, names: Sequence[str] | None = None) -> dict[str, str]:
    """Names of a model's parameters or buffers without wrappers, by full name; by default all parameters'.

    `_orig_mod.0.weight` of a compiled model is `0.weight`: patterns and states are the same for both. Where
    that would give two parameters one name, all keep their full names.
    """
    full = [name for name, _ in model.named_parameters()] if names is None else names
    plain = [".".join(_without_wrappers(model, name.split("."))) for name in full]
    return dict(zip(full, plain if len(set(plain)) == len(plain) else full, strict=True))


def _without_wrappers(model: torch.nn.Module, path: Sequence[str]) -> Iterator[str]:
    # A layer of any model may be called `module`: the class of its owner tells.
    wrappers = torch.nn.parallel
    owners = wrappers.DataParallel, wrappers.DistributedDataParallel, torch.optim.swa_utils.AveragedModel
    owner: torch.nn.Module | None = model
    for part in path:
        if part not in _WRAPPED and not (part == "module" and isinstance(owner, owners)):
            yield part
        owner = None if owner is None else owner._modules.get(part)


def unmatched_patterns(patterns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """A sentence for each pattern that matches no name, most likely a typing error; patterns are by field."""
    some = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return [
        f"{field}: {pattern!r} matches no parameter of the model, which has {some}"
        for field, among in patterns.items()
        for pattern in among
        if not any(fnmatchcase(name, pattern) for name in names)
    ]


def fitting(
    tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Copies of saved tensors, of the shape, dtype and device of those in `like`; raises ValueError."""
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        expected = like.get(name)
        if expected is None:
            raise ValueError(f"a {what} for {name!r}, of which this model keeps none")
        needed = dtype or expected.dtype
        if tensor.shape != expected.shape or tensor.dtype != needed:
            raise ValueError(
                f"the {what} of {name!r} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"this model needs {needed} {tuple(expected.shape)}"
            )
        copies[name] = tensor.to(expected.device, copy=True)
    return copies
