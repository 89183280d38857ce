"""What every kind of device does for methods: `cpu.ops.CpuOps` and `cuda.ops.CudaOps` have it.

For the same input they write the same bits. Nothing waits for a device but fetches of `Returns` and the
methods that say so: where a result is needed on the host, it is asked for first, and there once that was
fetched. On the CPU it is there at once.
"""

from .passes import Passes
from .wire import Wire


class Ops(Passes, Wire):
    """The passes and array operations that methods are made of."""
