"""Floats into symbols on a device: runs the pass that a quantizer's configuration describes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config.quantizers import EntropyFields, Float8Fields, LinearFields, QuantileFields
from ..ops.cpu.entropy_bits import bits_of_sample, sample_size
from ..ops.cuda import looking
from ..ops.cuda.huffman import Counts
from ..ops.cuda.linear import Ranges, extremes, extremes_of, linear_pass, linear_values
from ..ops.cuda.minifloat import fp8_pass, fp8_values, half_pass, half_values
from ..ops.cuda.quantile import quantile_pass, quantile_values
from ..ops.cuda.reports import GradientType, Reports
from ..ops.cuda.returns import Returns, Slot, Steps
from ..ops.cuda.runtime import Runtime
from ..rules.quantizing import one_block, rms_bits
from ..wire.forms import Form
from ..wire.quantized import Quantiles, Quantized, ScaledFloats, Uniform, blocks_of, symbol_dtype


@dataclass(frozen=True)
class Outcome:
    """A quantizing pass that was started."""

    values: Any
    """uint16 bits of 16-bit floats, or `Quantized`; without meaning if the report tells of sums that are not
    finite."""
    reports: Reports
    """Holds the pass's report alone, once what is returned was fetched."""


def quantize(
    runtime: Runtime,
    config: Any,
    residual: Any | None,
    gradient: Any,
    gradient_type: GradientType,
    looks: Returns,
    returns: Returns,
    rms: float | None = None,
) -> Steps[Outcome]:
    """Quantizes residual + gradient; as `rules.quantizing.quantize` on the CPU.

    Args:
        runtime: the device, where both arrays lie.
        config: a quantizer's fields, as a method or as a link.
        residual: float32 [n]; becomes what the symbols leave out. None for zeros that nobody keeps.
        gradient: [n], n at least 1; float32 for `entropy`.
        gradient_type: what its bits mean.
        looks: what the steps wait for; only `entropy` does, for its bits.
        returns: receives the report.
        rms: of the loss's gradient, for `entropy` by it; None to take that of `gradient`.
    """
    reports, n = Reports(runtime, 1, returns), int(gradient.size)
    if isinstance(config, EntropyFields):
        keys = looks.take(2, np.uint32)
        ranges = extremes(runtime, residual, gradient, 0, reports, keys=keys.array)
        values: Any = None
        bits = yield from _bits(runtime, config, residual, gradient, ranges, keys, looks, rms)
        if bits is not None:
            values = _linear(runtime, residual, gradient, "float32", bits, 0, reports, ranges)
    elif isinstance(config, LinearFields):
        block = one_block(n, config.block)
        values = _linear(runtime, residual, gradient, gradient_type, config.bits, block, reports, None)
    elif isinstance(config, QuantileFields):
        block = one_block(n, config.block)
        symbols, blocks = runtime.empty(n, symbol_dtype(config.bits)), blocks_of(n, block)
        means, exponents = runtime.empty(blocks << config.bits, np.uint16), runtime.empty(blocks, np.int8)
        quantile_pass(
            runtime, residual, gradient, config.bits, block, symbols, means, exponents, reports,
            gradient_type=gradient_type,
        )  # fmt: skip
        values = Quantiles(config.bits, block, symbols, means, exponents)
    elif isinstance(config, Float8Fields):
        block = one_block(n, config.block)
        symbols, exponents = runtime.empty(n, np.uint8), runtime.empty(blocks_of(n, block), np.int8)
        fp8_pass(runtime, residual, gradient, block, symbols, exponents, reports, gradient_type=gradient_type)
        values = ScaledFloats(8, block, symbols, exponents)
    else:
        values = runtime.empty(n, np.uint16)
        half_pass(runtime, config.kind, residual, gradient, values, reports, gradient_type=gradient_type)
    return Outcome(values, reports)


def _linear(
    runtime: Runtime,
    residual: Any | None,
    gradient: Any,
    gradient_type: GradientType,
    bits: int,
    block: int,
    reports: Reports,
    ranges: Ranges | None,
) -> Uniform:
    n = int(gradient.size)
    symbols, blocks = runtime.empty(n, symbol_dtype(bits)), blocks_of(n, block)
    lows, steps = runtime.empty(blocks, np.float32), runtime.empty(blocks, np.float32)
    linear_pass(
        runtime, residual, gradient, bits, block, symbols, lows, steps, reports,
        ranges=ranges, gradient_type=gradient_type,
    )  # fmt: skip
    return Uniform(bits, block, symbols, lows, steps)


def _bits(
    runtime: Runtime,
    config: EntropyFields,
    residual: Any | None,
    gradient: Any,
    ranges: Ranges,
    keys: Slot,
    looks: Returns,
    rms: float | None,
) -> Steps[int | None]:
    """Oland-Raj, Algorithm 1: how many bits a layer gets; None where it is not finite."""
    n = int(gradient.size)
    if config.form == "rms":
        total = looks.take(1, np.float64)
        looking.ordered_sum_of_squares(runtime, gradient, total.array)
        yield
        if extremes_of(keys.values).nonfinite:
            return None
        return rms_bits(config, math.sqrt(float(total.values[0]) / n) if rms is None else rms)
    sample = runtime.empty(sample_size(n, config.fraction), np.float32)
    looking.sample(runtime, gradient if residual is None else residual, sample)
    # Quantized between the layer's extremes, which need not come to the host for that.
    unread = Reports(runtime, 1)
    own = Ranges(ranges.keys, unread.begin())
    symbols = _linear(runtime, None, sample, "float32", config.sample_bits, 0, unread, own).symbols
    counts = Counts(runtime, symbols, config.sample_bits, looks)
    yield
    return None if extremes_of(keys.values).nonfinite else bits_of_sample(counts.values, config.given_floor)


def write_values(runtime: Runtime, values: Quantized, out: Any, *, add: bool) -> None:
    """Writes the values that symbols stand for to float32 [k], or adds them to what is there."""
    symbols, block, bits = values.symbols, values.block, values.bits
    if isinstance(values, Uniform):
        linear_values(runtime, symbols, block, bits, values.lows, values.steps, out, add)
    elif isinstance(values, Quantiles):
        quantile_values(runtime, symbols, block, bits, values.means, values.exponents, out, add)
    else:
        assert isinstance(values, ScaledFloats)
        fp8_values(runtime, symbols, block, values.exponents, out, add)


def floats(runtime: Runtime, form: Form, values: Any) -> Any:
    """float32 [k], what values with their own sign stand for; float32 values themselves."""
    if isinstance(values, Quantized):
        out = runtime.empty(values.size, np.float32)
        write_values(runtime, values, out, add=False)
        return out
    if form == "fp16" or form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
        out = runtime.empty(int(values.size), np.float32)
        half_values(runtime, form, values, out, False)
        return out
    return values
