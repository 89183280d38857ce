"""Tensors as bytes, whatever their dtype and strides; and their broadcast in a process group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import CorruptMessage
from ..names import plain_names
from ..torch_internals import overlaps_itself
from .agreement import description
from .carrier import Payload

_BUCKET_BYTES = 1 << 26
"""Tensors are broadcast together up to about this size, since every collective waits for the link's delay."""


def require_sendable(tensors: Mapping[str, Tensor]) -> None:
    """Refuses tensors that cannot be sent, or not be copied into, with a ValueError that names the first."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(f"{name} is of {tensor.layout} {tensor.dtype}: it must be dense")
        if overlaps_itself(tensor):
            raise ValueError(f"{name} is expanded: nothing can be copied into it; use its clone()")


def to_bytes(tensors: Iterable[Tensor]) -> Payload:
    """The values of tensors, row-major."""
    parts = [part.cpu() for part in _byte_parts(tensors)]
    return torch.cat(parts).numpy() if parts else np.empty(0, np.uint8)


def copy_bytes(data: Payload, tensors: Sequence[Tensor]) -> None:
    """Copies what `to_bytes` returned into tensors; raises CorruptMessage where it does not fit."""
    _copy(torch.from_numpy(data) if data.flags.writeable else torch.from_numpy(data.copy()), tensors)


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Copies rank 0's values to all of a process group, whose backend takes tensors on a device.

    Tensors have the same dtypes and shapes on all ranks, but may have other strides.
    """
    for bucket in _buckets(tensors):
        if dist.get_rank(group) == 0:
            data = torch.cat([part.to(device) for part in _byte_parts(bucket)])
        else:
            data = torch.empty(sum(tensor.nbytes for tensor in bucket), dtype=torch.uint8, device=device)
        dist.broadcast(data, group=group, group_src=0)
        if dist.get_rank(group):
            _copy(data, bucket)


def local_tensor(tensor: Tensor) -> Tensor:
    """A tensor's values on this process, as real numbers: of a DTensor, its shard; views."""
    local: Tensor = getattr(tensor, "to_local", lambda: tensor)().detach()
    return torch.view_as_real(local) if local.is_complex() else local


@torch.no_grad()
def copy_into(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copies values into tensors with as many elements each."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value.view_as(tensor))


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's buffers, by name without wrappers; `forward()` may assign others at any time."""
    return {name: module._buffers[key] for name, (module, key) in _buffer_places(model).items()}  # type: ignore[misc]


@torch.no_grad()
def load_buffers(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copies values into a model's buffers; one of another shape or dtype is replaced."""
    places = _buffer_places(model)
    for name, value in values.items():
        module, key = places[name]
        buffer = module._buffers[key]
        assert buffer is not None
        if description(buffer) == description(value):
            buffer.copy_(value)
        else:
            module._buffers[key] = value.to(buffer.device, copy=True)


def _buffer_places(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """The module and key of each buffer, by name without wrappers."""
    names = [name for name, _ in model.named_buffers()]
    parts = [(plain, full.rpartition(".")) for full, plain in plain_names(model, names).items()]
    return {plain: (model.get_submodule(path), key) for plain, (path, _, key) in parts}


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors that are not empty, in lists of about equal size."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(held.nbytes for held in bucket) + tensor.nbytes > _BUCKET_BYTES:
            yield bucket
            bucket = []
        if tensor.numel():
            bucket.append(tensor)
    if bucket:
        yield bucket


def _byte_parts(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """uint8 [n] on the tensors' devices."""
    for tensor in tensors:
        yield tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


@torch.no_grad()
def _copy(data: Tensor, tensors: Sequence[Tensor]) -> None:
    sizes = [tensor.nbytes for tensor in tensors]
    if sum(sizes) != data.numel():
        raise CorruptMessage(f"{data.numel()} bytes of tensors, these have {sum(sizes)}")
    for tensor, part in zip(tensors, torch.split(data, sizes), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))  # a clone is aligned
