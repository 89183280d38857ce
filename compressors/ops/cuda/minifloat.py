"""Short floating point formats on a device; the definitions are those of `ops.cpu.minifloat`.

Arguments are those of `Passes`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

from ..results import HalfFormat
from .blocks import lay_out
from .linear import extremes
from .reports import GradientType, Reports
from .runtime import Runtime


def half_pass(
    runtime: Runtime,
    kind: HalfFormat,
    residual: Any | None,
    gradient: Any,
    symbols: Any,
    reports: Reports,
    *,
    gradient_type: GradientType = "float32",
) -> None:
    """Rounds residual + gradient to a 16-bit format and keeps what that leaves out. Does not wait."""
    n = int(gradient.size)
    grid, report = lay_out(n, 0), reports.begin()
    kept: Any = 0 if residual is None else residual
    runtime.launch(
        "minifloat", f"{kind}_{gradient_type}", grid.launched, grid.threads,
        kept, gradient, n, symbols, report,
    )  # fmt: skip
    if residual is not None:
        _write_halves(runtime, kind, symbols, residual, True, report)


def half_values(runtime: Runtime, kind: HalfFormat, symbols: Any, out: Any, add: bool) -> None:
    """Writes to `out` (float32 [n]), or adds, the finite numbers that uint16 symbols [n] stand for."""
    _write_halves(runtime, kind, symbols, out, add, 0)


def _write_halves(runtime: Runtime, kind: HalfFormat, symbols: Any, out: Any, add: bool, report: Any) -> None:
    n = int(symbols.size)
    grid = lay_out(n, 0)
    runtime.launch(
        "minifloat", f"{kind}_values", grid.launched, grid.threads, symbols, n, out, int(add), report
    )


def fp8_pass(
    runtime: Runtime,
    residual: Any | None,
    gradient: Any,
    block: int,
    symbols: Any,
    exponents: Any,
    reports: Reports,
    *,
    gradient_type: GradientType = "float32",
) -> None:
    """Rounds residual + gradient to scaled float8 e4m3fn and keeps what that leaves out. Does not wait."""
    n = int(gradient.size)
    grid = lay_out(n, block)
    kept: Any = 0 if residual is None else residual
    if grid.whole:
        report = reports.begin()
        runtime.launch(
            "minifloat", f"fp8_blocks_{gradient_type}", grid.launched, grid.threads,
            kept, gradient, n, grid.block, symbols, exponents, report,
        )  # fmt: skip
        if residual is not None:
            _write_fp8(runtime, symbols, block, exponents, residual, True, report)
        return
    ranges = extremes(runtime, residual, gradient, block, reports, gradient_type=gradient_type)
    runtime.launch(
        "minifloat", f"fp8_pieces_{gradient_type}", grid.launched, grid.threads,
        kept, gradient, n, grid.block, ranges.keys, symbols, exponents, ranges.report,
    )  # fmt: skip


def fp8_values(runtime: Runtime, symbols: Any, block: int, exponents: Any, out: Any, add: bool) -> None:
    """Writes, or adds, the values that float8 symbols stand for. Does not wait."""
    _write_fp8(runtime, symbols, block, exponents, out, add, 0)


def _write_fp8(
    runtime: Runtime, symbols: Any, block: int, exponents: Any, out: Any, add: bool, report: Any
) -> None:
    n = int(symbols.size)
    grid = lay_out(n, block)
    runtime.launch(
        "minifloat", "fp8_values", grid.launched, grid.threads,
        symbols, n, grid.block, exponents, out, int(add), report,
    )  # fmt: skip
