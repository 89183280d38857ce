"""Copies of bytes on a device, from any address to any other.

Arguments are those of `Wire`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

from .runtime import Runtime

_THREADS = 256
_TILE = 8192
"""Bytes of a block of threads, as in copying.cu."""


def copy_bytes(runtime: Runtime, source: Any, out: Any) -> None:
    """Copies an array's bytes. Does not wait.

    Raises:
        ValueError: out is not as long as source.
    """
    if out.size != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes do not fill {out.size}")
    size = int(out.size)
    runtime.launch("copying", "copy_bytes", -(-size // _TILE), _THREADS, source, size, out)
