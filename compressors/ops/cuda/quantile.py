"""Bins of equal population in blocks on a device; the definition is that of `ops.cpu.quantile`.

Arguments are those of `Passes`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

import numpy as np

from .blocks import PIECE, Grid, lay_out, symbol_size
from .linear import extremes
from .reports import GradientType, Reports
from .runtime import Runtime

_THREADS = 256
_BIN_THREADS = 128
"""Of the block of threads that finds one bin's mean."""


def quantile_pass(
    runtime: Runtime,
    residual: Any | None,
    gradient: Any,
    bits: int,
    block: int,
    symbols: Any,
    tables: Any,
    exponents: Any,
    reports: Reports,
    *,
    gradient_type: GradientType = "float32",
) -> None:
    """Quantizes residual + gradient and keeps in the residual what the symbols leave out.

    The same symbols, tables and residual as of `ops.cpu.quantile.quantile_pass`. Does not wait.
    """
    n = int(gradient.size)
    grid, size = lay_out(n, block), symbol_size(bits)
    padded = 1 << (grid.block - 1).bit_length()
    kept: Any = 0 if residual is None else residual
    # Looked at first, as on the CPU: where a sum is not finite nothing is quantized.
    ranges = extremes(runtime, residual, gradient, block, reports, gradient_type=gradient_type)
    if grid.whole:
        runtime.launch(
            "quantile", f"quantize_blocks_{size}_{gradient_type}", grid.launched, grid.threads,
            kept, gradient, n, grid.block, ranges.keys, padded, bits, symbols, tables, exponents,
            ranges.report,
        )  # fmt: skip
        return
    keys = _sorted_keys(runtime, kept, gradient, grid, padded, gradient_type)
    runtime.launch(
        "quantile", "find_means", grid.blocks << bits, _BIN_THREADS,
        keys, n, grid.block, padded, ranges.keys, bits, tables, exponents, ranges.report,
    )  # fmt: skip
    runtime.launch(
        "quantile", f"quantize_pieces_{size}_{gradient_type}", grid.launched, grid.threads,
        kept, gradient, n, grid.block, keys, padded, bits, symbols, tables, exponents, ranges.report,
    )  # fmt: skip


def _sorted_keys(
    runtime: Runtime, kept: Any, gradient: Any, grid: Grid, padded: int, gradient_type: GradientType
) -> Any:
    """The order keys of blocks larger than a tile, sorted within each: uint32 [blocks * padded]."""
    count = grid.blocks * padded
    keys = runtime.empty(count, np.uint32)
    runtime.launch(
        "quantile", f"fill_keys_{gradient_type}", count // _THREADS, _THREADS,
        kept, gradient, int(gradient.size), grid.block, padded, keys,
    )  # fmt: skip
    tiles, pairs = count // PIECE, count // 2
    runtime.launch("quantile", "sort_tiles", tiles, _THREADS, keys, padded)
    size = 2 * PIECE
    while size <= padded:
        distance = size // 2
        while distance >= PIECE:
            runtime.launch("quantile", "merge_far", pairs // _THREADS, _THREADS, keys, padded, size, distance)
            distance //= 2
        runtime.launch("quantile", "merge_near", tiles, _THREADS, keys, padded, size)
        size *= 2
    return keys


def quantile_values(
    runtime: Runtime, symbols: Any, block: int, tables: Any, exponents: Any, out: Any, add: bool
) -> None:
    """Writes, or adds, the values that symbols stand for. Does not wait."""
    n, bits = int(symbols.size), (int(tables.size) // max(1, int(exponents.size))).bit_length() - 1
    grid = lay_out(n, block)
    runtime.launch(
        "quantile", f"values_{symbol_size(bits)}", grid.launched, grid.threads,
        symbols, n, grid.block, bits, tables, exponents, out, int(add),
    )  # fmt: skip
