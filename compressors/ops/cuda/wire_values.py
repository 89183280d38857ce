"""Checks of values and tables from the wire on a device. They accept the same values as on the CPU.

None of them waits: what is wrong goes into `faults`, whose `check` raises for it.
"""

from typing import Any

from ..cpu.minifloat import FP8_EXPONENTS
from ..cpu.quantile import EXPONENTS
from ..faults import Faults
from ..results import HalfFormat
from .runtime import Runtime, float_bits

_THREADS = 256
_PIECE = 4096
"""Elements of a block of threads, as in wire_values.cu."""
_EXPONENT_BITS: dict[HalfFormat, int] = {"fp16": 0x7C00, "bf16": 0x7F80}


def _launch(runtime: Runtime, kernel: str, count: int, *arguments: Any) -> None:
    runtime.launch("wire_values", kernel, -(-count // _PIECE), _THREADS, *arguments)


def check_wgt(runtime: Runtime, words: Any, values: Any, tau: float, faults: Faults) -> None:
    """Whether float32 values [k] are finite, reach tau and agree in sign with their words, uint32 [k]."""
    k = int(words.size)
    _launch(runtime, "wgt", k, words, values, k, float_bits(tau), faults.array)


def check_levels(runtime: Runtime, levels: Any, faults: Faults) -> None:
    """Whether no level, uint8 [k], is 0."""
    k = int(levels.size)
    _launch(runtime, "levels", k, levels, k, faults.array)


def check_floats(runtime: Runtime, values: Any, faults: Faults) -> None:
    """Whether float32 values [k] are finite."""
    k = int(values.size)
    _launch(runtime, "f32", k, values, k, faults.array)


def check_halves(runtime: Runtime, kind: HalfFormat, symbols: Any, faults: Faults) -> None:
    """Whether what 16-bit symbols, uint16 [k], stand for is finite."""
    k = int(symbols.size)
    _launch(runtime, "halves", k, symbols, k, _EXPONENT_BITS[kind], faults.array)


def check_linear_tables(runtime: Runtime, bits: int, lows: Any, steps: Any, faults: Faults) -> None:
    """Whether tables, both float32 [blocks], are such as `linear_pass` writes, and all values finite."""
    blocks = int(lows.size)
    _launch(runtime, "linear_tables", blocks, lows, steps, blocks, bits, faults.array)


def check_quantile_tables(runtime: Runtime, tables: Any, exponents: Any, faults: Faults) -> None:
    """Whether tables, uint16 [blocks * 2^bits] and int8 [blocks], are such as `quantile_pass` writes."""
    means, blocks = int(tables.size), int(exponents.size)
    _launch(runtime, "quantile_means", means, tables, means, faults.array)
    # Any small exponent will do: values that are too small for float32 are zeros.
    _launch(runtime, "exponents", blocks, exponents, blocks, -128, EXPONENTS[1], faults.array)


def check_fp8(runtime: Runtime, symbols: Any, exponents: Any, faults: Faults) -> None:
    """Whether no symbol, uint8 [k], is a NaN, and exponents, int8 [blocks], are such as `fp8_pass` writes."""
    k, blocks = int(symbols.size), int(exponents.size)
    _launch(runtime, "fp8_symbols", k, symbols, k, faults.array)
    _launch(runtime, "exponents", blocks, exponents, blocks, *FP8_EXPONENTS, faults.array)
