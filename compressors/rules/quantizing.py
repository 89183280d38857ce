"""Floats into symbols: runs the pass that a quantizer's configuration describes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..config.quantizers import EntropyFields, Float8Fields, LinearFields, QuantileFields
from ..ops.array import Array
from ..ops.cpu.entropy_bits import bits_of_sample, rms_bits, sample_size
from ..ops.interface import Ops
from ..ops.passes import Ranges
from ..ops.results import QuantizedPass
from ..ops.returns import Pending, Returns, Steps
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
    """A quantizing pass."""

    values: Array | Quantized
    """uint16 bits of 16-bit floats, or symbols and tables; without meaning if the pass was not finite."""
    passed: Pending[QuantizedPass]
    """What it came to."""


def form_of(config: Any) -> Form:
    """The form of what a quantizer makes, whether it is a method or a link."""
    return _FORM[config.kind]


def quantize(
    config: Any,
    residual: Tensor | None,
    gradient: Tensor,
    ops: Ops,
    looks: Returns,
    returns: Returns,
    rms: float | None = None,
) -> Steps[Outcome]:
    """Quantizes residual + gradient.

    Args:
        config: a quantizer's fields, as a method or as a link.
        residual: contiguous float32 [n]; becomes what the symbols leave out. None for zeros that nobody
            keeps.
        gradient: contiguous [n], n at least 1.
        ops: where both are.
        looks: what the steps wait for; only `entropy` does, for its bits.
        returns: receives what the pass comes to.
        rms: of the loss's gradient, for `entropy` by it; None to take that of `gradient`.
    """
    n = gradient.numel()
    if isinstance(config, EntropyFields):
        return (yield from _entropy(config, residual, gradient.float(), ops, looks, returns, rms))
    if isinstance(config, LinearFields):
        return _linear(residual, gradient, config.bits, one_block(n, config.block), ops, returns)
    if isinstance(config, QuantileFields):
        bits, block = config.bits, one_block(n, config.block)
        symbols, blocks = ops.empty(n, symbol_dtype(bits)), blocks_of(n, block)
        means, exponents = ops.empty(blocks << bits, np.uint16), ops.empty(blocks, np.int8)
        passed = ops.quantile_pass(residual, gradient, bits, block, symbols, means, exponents, returns)
        return Outcome(Quantiles(bits, block, symbols, means, exponents), passed)
    if isinstance(config, Float8Fields):
        block = one_block(n, config.block)
        symbols, exponents = ops.empty(n, np.uint8), ops.empty(blocks_of(n, block), np.int8)
        passed = ops.fp8_pass(residual, gradient, block, symbols, exponents, returns)
        return Outcome(ScaledFloats(8, block, symbols, exponents), passed)
    halves = ops.empty(n, np.uint16)
    return Outcome(halves, ops.half_pass(config.kind, residual, gradient, halves, returns))


def one_block(n: int, block: int) -> int:
    """0 where one block holds everything, so that a message says it in one way."""
    return block if block < n else 0


def _linear(
    residual: Tensor | None,
    gradient: Tensor,
    bits: int,
    block: int,
    ops: Ops,
    returns: Returns,
    ranges: Ranges | None = None,
) -> Outcome:
    n = gradient.numel()
    symbols, blocks = ops.empty(n, symbol_dtype(bits)), blocks_of(n, block)
    lows, steps = ops.empty(blocks, np.float32), ops.empty(blocks, np.float32)
    passed = ops.linear_pass(residual, gradient, bits, block, symbols, lows, steps, returns, ranges)
    return Outcome(Uniform(bits, block, symbols, lows, steps), passed)


def _entropy(
    config: EntropyFields,
    residual: Tensor | None,
    gradient: Tensor,
    ops: Ops,
    looks: Returns,
    returns: Returns,
    rms: float | None,
) -> Steps[Outcome]:
    """Oland-Raj, Algorithm 1: the bits first, then uniform bins over the whole layer."""
    n = gradient.numel()
    ranges = ops.extremes(residual, gradient, looks, returns)
    if config.form == "rms":
        squares = ops.ordered_sum_of_squares(gradient, looks) if rms is None else None
        yield
        if ranges.nonfinite:
            return _refused(ops)
        found = rms if squares is None else math.sqrt(squares() / n)
        assert found is not None
        bits = rms_bits(found, c0=config.c0, c1=config.given_floor)
    else:
        values = gradient if residual is None else residual
        size = sample_size(n, config.fraction)
        counts = ops.count_sample(values, size, config.sample_bits, ranges, looks)
        yield
        if ranges.nonfinite:
            return _refused(ops)
        bits = bits_of_sample(counts(), config.given_floor)
    return _linear(residual, gradient, bits, 0, ops, returns, ranges)


def _refused(ops: Ops) -> Outcome:
    return Outcome(ops.empty(0, np.uint16), lambda: QuantizedPass(0.0, True))
