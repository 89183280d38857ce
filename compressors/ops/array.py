"""What an array is: NumPy's in the CPU's memory, or a tensor on a device."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ..lazy import np, torch

if TYPE_CHECKING:  # specs are read without torch and NumPy
    from numpy.typing import NDArray as NDArray  # noqa: PLC0414 - for others to import
    from torch import Tensor as Tensor  # noqa: PLC0414

    Floats32: TypeAlias = NDArray[np.float32]
    Floats64: TypeAlias = NDArray[np.float64]
    Words: TypeAlias = NDArray[np.uint32]
    """[k], position << 1 | sign."""
    Flags: TypeAlias = NDArray[np.bool_]
    Bytes: TypeAlias = NDArray[np.uint8]
    """Bytes in the CPU's memory."""
    Numbers: TypeAlias = NDArray[np.int64]
else:
    NDArray = Tensor = Floats32 = Floats64 = Words = Flags = Bytes = Numbers = Any

Array: TypeAlias = Any
"""NumPy's, or a tensor on a device: one-dimensional, contiguous; its slices share its memory."""


def symbol_type(bits: int) -> type[np.uint8] | type[np.uint16]:
    """What holds a symbol of `bits` bits, 1 to 16."""
    if not 1 <= bits <= 16:
        raise ValueError(f"symbols have 1 to 16 bits, not {bits}")
    return np.uint8 if bits <= 8 else np.uint16


@cache
def torch_type(dtype: Any) -> torch.dtype:
    """NumPy's type as torch's."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def aligned(data: Bytes, dtype: Any) -> NDArray[Any]:
    """Bytes as an array of a type, in the same memory; copied only if they lie at an odd address."""
    array: NDArray[Any] = data.view(dtype)
    return array if array.flags.aligned else array.copy()


def host(array: Array | None) -> NDArray[Any]:
    """An array that lies in the CPU's memory, as NumPy's."""
    assert isinstance(array, np.ndarray)
    return array


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A contiguous view that nobody writes through: kernels that read are compiled once, for such arrays."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
