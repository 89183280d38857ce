"""The state of optimizers as bytes, such as their moments; nothing is unpickled.

A list in JSON, with its length before it as int64, names the optimizer, the parameter (its place among the
optimizer's) and the field of each value, and has the value; of a tensor, the dtype and the shape. The
tensors' bytes follow.
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.optim import Optimizer

from ...errors import CorruptMessage
from ..carrier import Payload
from ..tensors import copy_bytes, to_bytes

_Value = tuple[int, int, str, bool | int | float | tuple[str, tuple[int, ...]] | None]
_VALUES = TypeAdapter(list[_Value])
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_LENGTH = np.dtype("<i8")


def joined(first: Payload, second: Payload) -> Payload:
    """Two payloads as one, for `split`."""
    return np.concatenate([np.array([first.size], _LENGTH).view(np.uint8), first, second])


def split(data: Payload, sender: str) -> tuple[Payload, Payload]:
    """What `joined` was given; raises CorruptMessage, which names the sender."""
    size = int(data[: _LENGTH.itemsize].view(_LENGTH)[0]) if data.size >= _LENGTH.itemsize else -1
    first, second = np.split(data[_LENGTH.itemsize :], [max(size, 0)])
    if first.size != size:
        raise CorruptMessage(f"{sender} sent {data.size} bytes that have not the parts they should have")
    return first, second


def moments_of(optimizers: Sequence[Optimizer]) -> Payload:
    """The state of all parameters; raises TypeError where it has more than tensors and numbers."""
    values, tensors = list[Any](), list[Tensor]()
    for place, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    tensors.append(value)
                    values.append((place, parameter, name, (str(value.dtype), tuple(value.shape))))
                elif value is None or isinstance(value, int | float):
                    values.append((place, parameter, name, value))
                else:
                    raise TypeError(
                        f"moments = True: {type(optimizer).__name__} keeps {name!r}, a "
                        f"{type(value).__name__}: only tensors and numbers can be sent"
                    )
    return joined(np.frombuffer(json.dumps(values).encode(), np.uint8), to_bytes(tensors))


def has_moments(optimizers: Sequence[Optimizer]) -> bool:
    """Whether any parameter has a state of former steps; Adagrad's has one before the first."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return any(state and state.get("step", 1) for state in states)


def load_moments(data: Payload, optimizers: Sequence[Optimizer]) -> None:
    """Gives optimizers what `moments_of` returned; raises CorruptMessage where it does not fit."""
    sender = "the member that gave its state"
    fields, rest = split(data, sender)
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    tensors = list[Tensor]()
    try:
        values = _VALUES.validate_json(fields.tobytes())
        shapes = [value for *_, value in values if isinstance(value, tuple)]
        if sum(_DTYPES[dtype].itemsize * prod(shape) for dtype, shape in shapes) != rest.size:
            raise CorruptMessage(f"{sender} sent {rest.size} bytes of moments, their shapes have others")
        for place, parameter, name, value in values:
            if isinstance(value, tuple):
                tensors.append(torch.empty(value[1], dtype=_DTYPES[value[0]]))
            kept = tensors[-1] if isinstance(value, tuple) else value
            states[place].setdefault(parameter, {})[name] = kept
        copy_bytes(rest, tensors)
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
            _restore_dtypes(optimizer, state)
    except (ValidationError, LookupError, RuntimeError) as problem:
        raise CorruptMessage(f"{sender} sent moments that do not fit: {problem}") from None


def _restore_dtypes(optimizer: Optimizer, states: Mapping[int, Mapping[str, Any]]) -> None:
    """Sets tensors anew that torch has cast to the dtype of their parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, state in states.items():
        kept = optimizer.state[parameters[number]]
        for name, value in state.items():
            if isinstance(value, Tensor) and kept[name].dtype != value.dtype:
                kept[name] = value.to(kept[name].device)
