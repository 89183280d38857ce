"""A device: its memory, which is torch's, and kernels by the name of their source.

One interface and two implementations: CuPy's on a GPU, and in the tests an emulator that runs the same
sources on the CPU. Kernels take pointers and 64-bit integers only, so that both can pass arguments
alike; a float travels as its bits (`float_bits`).

All memory is torch's. Its allocator gives a block that was freed only to work that is started later on the
same stream: nothing need be waited for before an array is dropped, and the scratch memory of one bucket is
that of the next. A pool of CuPy's own would keep memory from torch, and know nothing of torch's streams.
"""

import struct
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..array import torch_type
from ..interface import Ops

SOURCES = Path(__file__).parent
"""Where the `.cu` and `.cuh` files are."""
OPTIONS = ("--std=c++17", "--fmad=false")
"""For the compiler: no fused multiply-add, so that results are those of the CPU bit for bit."""
_MOST_CONSTANTS = 1024


class Device(Ops):
    """Arrays, which are one-dimensional tensors, and kernels on one device and torch's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = device.type == "cuda"
        self._constants: dict[tuple[int, bytes], Tensor] = {}

    @property
    def stream(self) -> int:
        """The pointer of torch's current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream if self._pinned else 0

    def empty(self, size: int, dtype: Any) -> Tensor:
        return torch.empty(size, dtype=torch_type(dtype), device=self.device)

    def zeros(self, size: int, dtype: Any) -> Tensor:
        array = self.empty(size, dtype)
        array.view(torch.uint8).zero_()
        return array

    def fetch_all(self, arrays: Sequence[Tensor]) -> list[NDArray[Any]]:
        """Copies in the CPU's memory: side by side on the device, then in one copy to pinned memory."""
        if not arrays:
            return []
        order = _widest_first(arrays)
        widths = [arrays[number].nbytes for number in order]
        packed = torch.cat([arrays[number].view(torch.uint8) for number in order])
        host = torch.empty(packed.numel(), dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        host.copy_(packed, non_blocking=True)
        if self._pinned:
            torch.cuda.current_stream(self.device).synchronize()
        pieces = dict(zip(order, host.split_with_sizes(widths), strict=True))
        return [pieces[number].view(array.dtype).numpy() for number, array in enumerate(arrays)]

    def place_all(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """NumPy arrays on the device; one copy from pinned memory, so that the host need not wait."""
        if not arrays:
            return []
        order, flat = _widest_first(arrays), [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        widths = [flat[number].nbytes for number in order]
        host = torch.empty(sum(widths), dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        np.concatenate([flat[number].view(np.uint8) for number in order], out=host.numpy())
        packed = host.to(self.device, non_blocking=True, copy=True)
        pieces = dict(zip(order, packed.split_with_sizes(widths), strict=True))
        return [pieces[number].view(torch_type(array.dtype)) for number, array in enumerate(flat)]

    def constant(self, array: NDArray[Any]) -> Tensor:
        """What kernels only read: copied once, and kept for when the same is asked for again."""
        key = self.stream, array.tobytes()
        placed = self._constants.get(key)
        if placed is None:
            if len(self._constants) >= _MOST_CONSTANTS:
                self._constants.clear()
            (placed,) = self.place_all([array])
            self._constants[key] = placed
        return placed

    def array(self, tensor: Tensor) -> Tensor:
        assert tensor.is_contiguous(), "kernels know no strides"
        flat = tensor.detach().reshape(-1)
        return flat.view(torch.uint16) if tensor.dtype in (torch.float16, torch.bfloat16) else flat

    def tensor(self, array: Tensor) -> Tensor:
        return array

    @abstractmethod
    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Starts an `extern "C" __global__` function of a `.cu` file; does not wait for it.

        No blocks start nothing. Arguments are arrays of this device, and integers (passed as 64 bits).
        """


def _widest_first(arrays: Sequence[Any]) -> list[int]:
    """The order in which arrays lie side by side with every element at a multiple of its size."""
    return sorted(range(len(arrays)), key=lambda number: -int(arrays[number].dtype.itemsize))


def float_bits(value: float) -> int:
    """The bits of a float32, to be passed to a kernel."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)
