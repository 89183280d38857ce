"""The CPU: numba's loops in memory that tensors and arrays share."""

from ..interface import Ops
from .passes import CpuPasses
from .wire import CpuWire


class CpuOps(CpuPasses, CpuWire, Ops):
    """See `Ops`. Arrays are NumPy's."""


CPU = CpuOps()
"""With one thread."""
