"""What the launching code needs of a device: arrays, and kernels by the name of their source.

One interface and two implementations: CuPy on a GPU, and in the tests an emulator that runs the same
sources on the CPU. Kernels take pointers and 64-bit integers only, so that both can pass arguments
alike; a float travels as its bits (`float_bits`).
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

SOURCES = Path(__file__).parent
"""Where the `.cu` and `.cuh` files are."""
OPTIONS = ("--std=c++17", "--fmad=false")
"""For the compiler: no fused multiply-add, so that results are those of the CPU bit for bit."""


class Runtime(Protocol):
    """A device: its memory and its kernels, all on one stream."""

    def empty(self, size: int, dtype: Any) -> Any:
        """A one-dimensional array on the device, its contents undefined."""

    def zeros(self, size: int, dtype: Any) -> Any:
        """The same, of zeros."""

    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Starts a kernel; does not wait for it.

        Args:
            source: name of the `.cu` file without its ending.
            kernel: an `extern "C" __global__` function in it.
            blocks: how many; 0 starts nothing.
            threads: of a block.
            arguments: arrays of this device, and integers (passed as 64 bits).
        """

    def fetch(self, array: Any) -> Any:
        """A copy of an array in the CPU's memory, as a NumPy array; waits for what was started before."""

    def fetch_all(self, arrays: Sequence[Any]) -> list[Any]:
        """The same of several arrays; waits once."""

    def array(self, tensor: "Tensor") -> Any:
        """A contiguous tensor of this device as a one-dimensional array in the same memory.

        16-bit floats become uint16, their bits.
        """

    def tensor(self, array: Any) -> "Tensor":
        """An array of this device as a tensor in the same memory; float32 or uint8."""


def float_bits(value: float) -> int:
    """The bits of a float32, to be passed to a kernel."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)
