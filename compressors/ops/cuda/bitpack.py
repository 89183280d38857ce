"""Symbols of 1 to 16 bits side by side, on a device; the bytes are those of `ops.cpu.bitpack`.

Arguments are those of `Wire`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

import numpy as np

from ...errors import CorruptMessage
from ..cpu.bitpack import packed_bytes, symbol_type
from ..faults import Faults
from .runtime import Runtime

_THREADS = 256
_TILE = 2048
"""Symbols of a block of threads, as in packing.cuh."""


def pack(runtime: Runtime, symbols: Any, bits: int, out: Any, faults: Faults) -> None:
    """Packs symbols. Does not wait.

    Raises:
        ValueError: arrays of another type or size.
    """
    dtype = np.dtype(symbol_type(bits))
    if symbols.dtype != dtype:
        raise ValueError(f"symbols of {bits} bits are {dtype}, not {symbols.dtype}")
    if out.size != packed_bytes(symbols.size, bits):
        raise ValueError(f"{symbols.size} symbols of {bits} bits do not make {out.size} bytes")
    k = int(symbols.size)
    runtime.launch("bitpack", f"pack_{dtype}", -(-k // _TILE), _THREADS, symbols, k, bits, out, faults.array)


def unpack(runtime: Runtime, body: Any, bits: int, k: int, faults: Faults) -> Any:
    """Reads what `pack` wrote. Does not wait.

    Returns:
        The symbols, uint8 (bits up to 8) or uint16 [k].

    Raises:
        CorruptMessage: body is not as long as k symbols are.
    """
    dtype = np.dtype(symbol_type(bits))
    if body.size != packed_bytes(k, bits):
        raise CorruptMessage(f"{body.size} bytes do not hold {k} symbols of {bits} bits")
    symbols = runtime.empty(k, dtype)
    runtime.launch(
        "bitpack", f"unpack_{dtype}", -(-k // _TILE), _THREADS, body, k, bits, symbols, faults.array
    )
    return symbols
