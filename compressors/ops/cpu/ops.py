"""The CPU: numba's loops in memory that tensors and arrays share."""

from .passes import CpuPasses
from .wire import CpuWire


class CpuOps(CpuPasses, CpuWire):
    """The passes (`Ops`), and messages. Arrays are NumPy's."""


CPU = CpuOps()
"""With one thread."""
