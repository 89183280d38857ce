"""Floats into symbols: runs the pass that a quantizer's configuration describes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.quantizers import EntropyFields, Float8Fields, LinearFields, QuantileFields
from ..ops.cpu import entropy_bits, linear, minifloat, quantile
from ..ops.cpu.ordered_sum import ordered_sum_of_squares
from ..wire.forms import Form
from ..wire.quantized import Quantiles, Quantized, ScaledFloats, Uniform, blocks_of, symbol_dtype

_FORM: dict[str, Form] = {
    "linear": "linear",
    "entropy": "linear",
    "quantile": "quantile",
    "fp8": "fp8",
    "fp16": "fp16",
    "bf16": "bf16",
}


@dataclass(frozen=True)
class Outcome:
    """What a quantizing pass came to."""

    values: NDArray[Any] | Quantized
    """uint16 bits of 16-bit floats, or symbols and tables; without meaning if `nonfinite`."""
    residual_squares: float
    nonfinite: bool
    """Whether residual + gradient was not finite somewhere; then the residual gained the gradient, but for
    elements whose sum is not finite."""


def form_of(config: Any) -> Form:
    """The form of what a quantizer makes, whether it is a method or a link."""
    return _FORM[config.kind]


def quantize(
    config: Any,
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    threads: int,
    rms: float | None = None,
) -> Outcome:
    """Quantizes residual + gradient.

    Args:
        config: a quantizer's fields, as a method or as a link.
        residual: contiguous float32 [n]; becomes what the symbols leave out. None for zeros that nobody
            keeps.
        gradient: contiguous float32 [n], n at least 1.
        threads: how many may share the work.
        rms: of the loss's gradient, for `entropy` by it; None to take that of `gradient`.
    """
    n = gradient.size
    if isinstance(config, LinearFields):
        return _linear(residual, gradient, config.bits, one_block(n, config.block), threads)
    if isinstance(config, EntropyFields):
        return _entropy(config, residual, gradient, threads, rms)
    if isinstance(config, QuantileFields):
        block = one_block(n, config.block)
        symbols = np.empty(n, symbol_dtype(config.bits))
        blocks = blocks_of(n, block)
        means, exponents = np.empty((blocks, 1 << config.bits), np.uint16), np.empty(blocks, np.int8)
        ran = quantile.quantile_pass(
            residual, gradient, config.bits, block, symbols, means, exponents, threads
        )
        values = Quantiles(config.bits, block, symbols, means, exponents)
        return Outcome(values, ran.residual_squares, ran.nonfinite)
    if isinstance(config, Float8Fields):
        block = one_block(n, config.block)
        symbols, exponents = np.empty(n, np.uint8), np.empty(blocks_of(n, block), np.int8)
        ran = minifloat.fp8_pass(residual, gradient, block, symbols, exponents, threads)
        return Outcome(ScaledFloats(8, block, symbols, exponents), ran.residual_squares, ran.nonfinite)
    halves = np.empty(n, np.uint16)
    ran = minifloat.half_pass(config.kind, residual, gradient, halves, threads)
    return Outcome(halves, ran.residual_squares, ran.nonfinite)


def rms_bits(config: EntropyFields, rms: float) -> int:
    """The bits of a layer whose gradient has this root mean square (Oland-Raj, section 3.2)."""
    return entropy_bits.rms_bits(rms, c0=config.c0, c1=config.given_floor)


def one_block(n: int, block: int) -> int:
    """0 where one block holds everything, so that a message says it in one way."""
    return block if block < n else 0


def _linear(
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    bits: int,
    block: int,
    threads: int,
    ranges: linear.Extremes | None = None,
) -> Outcome:
    blocks = blocks_of(gradient.size, block)
    symbols = np.empty(gradient.size, symbol_dtype(bits))
    lows, steps = np.empty(blocks, np.float32), np.empty(blocks, np.float32)
    ran = linear.linear_pass(residual, gradient, bits, block, symbols, lows, steps, threads, ranges)
    return Outcome(Uniform(bits, block, symbols, lows, steps), ran.residual_squares, ran.nonfinite)


def _entropy(
    config: EntropyFields,
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    threads: int,
    rms: float | None,
) -> Outcome:
    """Oland-Raj, Algorithm 1: the bits first, then uniform bins over the whole layer."""
    ranges = linear.extremes(residual, gradient, 0, threads)
    if ranges.nonfinite:
        return Outcome(gradient, 0.0, True)
    if config.form == "rms":
        if rms is None:
            rms = math.sqrt(ordered_sum_of_squares(gradient) / gradient.size)
        bits = rms_bits(config, rms)
    else:

        def values_of(positions: NDArray[np.int64]) -> NDArray[np.float32]:
            return gradient[positions] if residual is None else residual[positions]

        low, high = ranges.lows[0], ranges.highs[0]
        bits = entropy_bits.entropy_bits(
            values_of, gradient.size, low, high, config.fraction, config.sample_bits, config.given_floor
        )
    return _linear(residual, gradient, bits, 0, threads, ranges)
