"""Copies of bytes on a device, from any address to any other."""

from typing import Any

from .runtime import Runtime

_THREADS = 256
_TILE = 8192
"""Bytes of a block of threads, as in copying.cu."""


def copy_bytes(runtime: Runtime, source: Any, out: Any) -> None:
    """Copies an array's bytes. Does not wait.

    Args:
        runtime: the device, where both lie.
        source: of any type.
        out: uint8, of as many bytes, at any address.

    Raises:
        ValueError: out is not as long as source.
    """
    if out.size != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes do not fill {out.size}")
    size = int(out.size)
    runtime.launch("copying", "copy_bytes", -(-size // _TILE), _THREADS, source, size, out)
