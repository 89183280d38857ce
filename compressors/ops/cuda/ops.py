"""A device: kernels over torch's memory, all on one stream."""

import torch

from ..interface import Ops
from .crc32 import Checksums
from .passes import CudaPasses
from .wire import CudaWire


class CudaOps(CudaPasses, CudaWire, Ops):
    """See `Ops` and `Runtime`. Arrays are `DeviceArray`s."""

    def __init__(self, device: torch.device) -> None:
        """On a device of torch's."""
        super().__init__(device)
        self.checksums = Checksums(self)
