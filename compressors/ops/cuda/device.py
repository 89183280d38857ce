"""A device: its memory, which is torch's, and kernels by the name of their source.

One interface and two implementations: CuPy's on a GPU, and in the tests an emulator that runs the same
sources on the CPU. Kernels take pointers and 64-bit integers only, so that both can pass arguments
alike; a float travels as its bits (`float_bits`).

All memory is torch's. Its allocator gives a block that was freed only to work that is started later on the
same stream: nothing need be waited for before an array is dropped, and the scratch memory of one bucket is
that of the next. A pool of CuPy's own would keep memory from torch, and know nothing of torch's streams.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SOURCES = Path(__file__).parent
"""Where the `.cu` and `.cuh` files are."""
OPTIONS = ("--std=c++17", "--fmad=false")
"""For the compiler: no fused multiply-add, so that results are those of the CPU bit for bit."""

_TYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.uint8): torch.uint8}
_ARRAYS = {torch.float32: np.float32, torch.uint8: np.uint8}
_SHORT_FLOATS = (torch.float16, torch.bfloat16)
_ALIGNMENT = 16
"""Bytes at whose multiples arrays begin that were placed together: no kernel meets an odd address."""
_MOST_CONSTANTS = 1024


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A contiguous one-dimensional array. Slices and views share its memory."""

    memory: Tensor
    """uint8, its bytes."""
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Elements."""
        return self.nbytes // self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.memory.numel()

    @property
    def pointer(self) -> int:
        """Where it begins; 0 if it is empty."""
        return self.memory.data_ptr()

    def __getitem__(self, elements: slice) -> "DeviceArray":
        """Neighbouring elements."""
        start, stop, step = elements.indices(self.size)
        assert step == 1
        width = self.dtype.itemsize
        return DeviceArray(self.memory[start * width : max(start, stop) * width], self.dtype)

    def view(self, dtype: Any) -> "DeviceArray":
        """The same bytes as another type."""
        return DeviceArray(self.memory, np.dtype(dtype))


class Device(ABC):
    """Arrays and kernels on one device, all on torch's current stream."""

    def __init__(self, device: torch.device) -> None:
        """On a device of torch's."""
        self.device = device
        self._pinned = device.type == "cuda"
        self._constants: dict[tuple[int, bytes], DeviceArray] = {}

    @property
    def stream(self) -> int:
        """The pointer of torch's current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream if self._pinned else 0

    def empty(self, size: int, dtype: Any) -> DeviceArray:
        """A one-dimensional array, its contents undefined."""
        width = np.dtype(dtype).itemsize
        memory = torch.empty(size * width, dtype=torch.uint8, device=self.device)
        return DeviceArray(memory, np.dtype(dtype))

    def zeros(self, size: int, dtype: Any) -> DeviceArray:
        """The same, of zeros."""
        array = self.empty(size, dtype)
        array.memory.zero_()
        return array

    def fetch_all(self, arrays: Sequence[DeviceArray]) -> list[NDArray[Any]]:
        """Copies in the CPU's memory, through pinned memory: all are on their way before the wait."""
        begins, end = _side_by_side([array.nbytes for array in arrays])
        whole = torch.empty(end, dtype=torch.uint8, pin_memory=self._pinned)
        for begin, array in zip(begins, arrays, strict=True):
            if array.nbytes:
                whole[begin : begin + array.nbytes].copy_(array.memory, non_blocking=True)
        if self._pinned:
            torch.cuda.current_stream(self.device).synchronize()
        host = whole.numpy()
        return [
            host[begin : begin + array.nbytes].view(array.dtype)
            for begin, array in zip(begins, arrays, strict=True)
        ]

    def place_all(self, arrays: Sequence[NDArray[Any]]) -> list[DeviceArray]:
        """NumPy arrays on the device; one copy through pinned memory, so that the host need not wait."""
        begins, end = _side_by_side([array.nbytes for array in arrays])
        host = torch.empty(end, dtype=torch.uint8, pin_memory=self._pinned)
        there = host.numpy()
        for begin, array in zip(begins, arrays, strict=True):
            there[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory = host.to(self.device, non_blocking=True, copy=True)
        return [
            DeviceArray(memory[begin : begin + array.nbytes], array.dtype)
            for begin, array in zip(begins, arrays, strict=True)
        ]

    def constant(self, array: NDArray[Any]) -> DeviceArray:
        """What kernels only read: copied once, and kept there for when the same is asked for again."""
        key = self.stream, array.tobytes()
        found = self._constants.get(key)
        if found is None:
            if len(self._constants) >= _MOST_CONSTANTS:
                self._constants.clear()
            (found,) = self.place_all([array])
            self._constants[key] = found
        return found

    def array(self, tensor: Tensor) -> DeviceArray:
        """A contiguous tensor of the device as an array in the same memory; 16-bit floats as their bits."""
        assert tensor.is_contiguous(), "kernels know no strides"
        dtype = np.uint16 if tensor.dtype in _SHORT_FLOATS else _ARRAYS[tensor.dtype]
        if not tensor.numel():
            return self.empty(0, dtype)  # an empty tensor's stride may be anything, and it has no other views
        return DeviceArray(tensor.detach().reshape(-1).view(torch.uint8), np.dtype(dtype))

    def tensor(self, array: DeviceArray) -> Tensor:
        """An array of the device as a tensor in the same memory; float32 or uint8."""
        return array.memory.view(_TYPES[array.dtype])

    @abstractmethod
    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Starts a kernel; does not wait for it.

        Args:
            source: name of the `.cu` file without its ending.
            kernel: an `extern "C" __global__` function in it.
            blocks: how many; 0 starts nothing.
            threads: of a block.
            arguments: arrays of this device, and integers (passed as 64 bits).
        """


def _side_by_side(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where arrays of so many bytes begin in one buffer, and its length."""
    widths = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    ends = list(accumulate(widths, initial=0))
    return ends[:-1], ends[-1]


def float_bits(value: float) -> int:
    """The bits of a float32, to be passed to a kernel."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)
