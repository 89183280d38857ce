"""A device: kernels over torch's memory, all on one stream."""

from functools import cached_property

from ..interface import Ops
from .crc32 import Checksums
from .passes import CudaPasses
from .wire import CudaWire


class CudaOps(CudaPasses, CudaWire, Ops):
    """See `Ops` and `Runtime`. Arrays are `DeviceArray`s."""

    @cached_property
    def checksums(self) -> Checksums:
        """Works out checksums there."""
        return Checksums(self)
