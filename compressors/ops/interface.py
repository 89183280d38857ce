"""The operations on each kind of device: `cpu.ops.CpuOps` and `cuda.ops.CudaOps` implement them.

For the same input they write the same bits. Only fetches of `Returns` wait for a device, and the methods that
say so. If a result is needed on the host, it is requested first, and is there after the fetch. On the CPU, it
is there at once.
"""

from .passes import Passes
from .wire import Wire


class Ops(Passes, Wire):
    """The passes and array operations of which methods consist."""
