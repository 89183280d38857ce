"""Tensors as bytes: values in 32 or 16 bits, without headers.

The receiver knows shape and type. 16 bits means bfloat16. It has the range of float32, so gradients need no
scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Payload


@dataclass(frozen=True)
class Wire:
    """How values travel."""

    dtype: torch.dtype
    """float32 or bfloat16; float64 where a proof needs it."""

    @property
    def nbytes(self) -> int:
        """Of one value."""
        return self.dtype.itemsize

    def pack(self, values: Tensor) -> Payload:
        """Values [...] as bytes, row by row."""
        return packed(values.to(self.dtype))

    def unpack(self, payload: Payload, shape: Sequence[int], like: Tensor) -> Tensor:
        """What `pack` of values of that shape gave, with the type and on the device of `like`.

        Raises:
            CorruptMessage: there are too few or too many bytes.
        """
        return unpacked(payload, shape, self.dtype).to(like.device, like.dtype)

    def as_received(self, values: Tensor) -> Tensor:
        """A worker's own values, rounded as for the others, so that all workers compute with the same."""
        return values.to(self.dtype).to(values.dtype)


def packed(tensor: Tensor) -> Payload:
    """A tensor's bytes, row by row, in the CPU's memory."""
    flat = tensor.detach().contiguous().reshape(-1).cpu()
    payload: Payload = flat.view(torch.uint8).numpy()
    return payload


def unpacked(payload: Payload, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The tensor with these bytes, a copy on the CPU. Raises CorruptMessage if their number is wrong."""
    expected = int(np.prod(shape)) * dtype.itemsize
    if payload.size != expected:
        raise CorruptMessage(f"{payload.size} bytes of values; {tuple(shape)} of {dtype} has {expected}")
    result = torch.empty(expected, dtype=torch.uint8)
    result.numpy()[:] = payload
    return result.view(dtype).view(*shape)


def nothing(workers: int) -> NDArray[np.int64]:
    """int64 [workers, workers] zeros: lengths to fill in."""
    return np.zeros((workers, workers), np.int64)
