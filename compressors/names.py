"""Names of parameters without wrappers, and the patterns of a method that match them."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from .methods import CompressedMethod, Method
from .methods.threshold import ThresholdedMethod
from .thresholds.layers import LayeredTau

if TYPE_CHECKING:  # the check of a spec needs no torch
    from torch import nn

_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Where torch.compile, activation checkpointing and FSDP keep what they wrap."""
_SHOWN = 6
"""Names of parameters that a message lists; the others are counted."""


def plain_names(model: "nn.Module", names: Sequence[str] | None = None) -> dict[str, str]:
    """Names of a model's parameters or buffers without wrappers, by full name; by default all parameters'.

    `_orig_mod.0.weight` of a compiled model is `0.weight`: patterns and states are the same for both. Where
    that would give two parameters one name, all keep their full names.
    """
    full = [name for name, _ in model.named_parameters()] if names is None else names
    plain = [".".join(_without_wrappers(model, name.split("."))) for name in full]
    return dict(zip(full, plain if len(set(plain)) == len(plain) else full, strict=True))


def _without_wrappers(model: "nn.Module", path: Sequence[str]) -> Iterator[str]:
    from torch.nn.parallel import DataParallel, DistributedDataParallel  # noqa: PLC0415
    from torch.optim.swa_utils import AveragedModel  # noqa: PLC0415

    # A layer of any model may be called `module`: the class of its owner tells.
    owners = (DataParallel, DistributedDataParallel, AveragedModel)
    owner: nn.Module | None = model
    for part in path:
        if part not in _WRAPPED and not (part == "module" and isinstance(owner, owners)):
            yield part
        owner = None if owner is None else owner._modules.get(part)


def unmatched_patterns(method: Method, names: Sequence[str]) -> list[str]:
    """A method's patterns that match no name, most likely typing errors.

    Returns:
        Sentences, which begin with the pattern's field, such as `exempt.names`.
    """
    patterns = dict[str, Sequence[str]]()
    if isinstance(method, CompressedMethod):
        patterns["exempt.names"] = method.exempt.names
    if isinstance(method, ThresholdedMethod) and isinstance(method.tau, LayeredTau):
        patterns["tau.patterns"] = tuple(method.tau.patterns)
    return unmatched(patterns, names)


def unmatched(patterns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """A sentence for each pattern that matches no name; patterns are by field."""
    some = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return [
        f"{field}: {pattern!r} matches no parameter of the model, which has {some}"
        for field, among in patterns.items()
        for pattern in among
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
