"""The fused threshold pass for CPUs with AVX-512, sixteen elements at a time.

One loop without branches reads residual and gradient, writes the residual, and appends what is sent
to compact arrays through `vpcompressd`. A branch around the sending part would be mispredicted every
few groups, which costs more than sending nothing does. The compressed vector is stored whole, because
the masked form that writes to memory is microcoded on some CPUs: output arrays need sixteen spare
elements.

The loop is written as LLVM IR since no numba expression compiles to `vpcompressd`. Only whole
groups of sixteen are handled here; a parameter's tail goes through the portable pass.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from . import portable
from .rows import floats

LANES = 16
SPARE = LANES
"""Elements that output arrays must have beyond the last one written."""

_BLOCK = 1024 * LANES
"""Elements between two hand-overs of the sum of squares from float32 lanes to a float64."""

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_VF, _VI = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_MAGNITUDE, _SIGN, _INFINITY = 0x7FFFFFFF, -0x80000000, 0x7F800000


def supported() -> bool:
    """Whether this CPU has what the pass needs."""
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))


def _constant(vector: ir.VectorType, value: Any) -> ir.Constant:
    return ir.Constant(vector, [value] * LANES)


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, _constant(_VI, 0))


def _with_sign(builder: Any, magnitude: Any, sign: Any) -> Any:
    return builder.bitcast(builder.or_(builder.bitcast(magnitude, _VI), sign), _VF)


def _pointer(builder: Any, data: Any, index: Any, kind: ir.Type) -> Any:
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


def _call(builder: Any, name: str, result: ir.Type, *arguments: Any) -> Any:
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.call(function, arguments)


def _compress(builder: Any, vector: Any, mask: Any) -> Any:
    undefined = ir.Constant(vector.type, ir.Undefined)
    return _call(builder, "llvm.x86.avx512.mask.compress.v16i32", _VI, vector, undefined, mask)


def _make_blocks(rule: str) -> Any:
    """An intrinsic that runs one rule over whole groups of sixteen in [start, stop)."""

    @intrinsic
    def blocks(
        typing_context: Any,
        residual: Any,
        gradient: Any,
        start: Any,
        stop: Any,
        tau: Any,
        base: Any,
        words: Any,
        values: Any,
        sent: Any,
        tally: Any,
    ) -> Any:
        arguments = (residual, gradient, start, stop, tau, base, words, values, sent, tally)
        signature = types.int64(*arguments)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            def data(position: int) -> Any:
                return context.make_array(signature.args[position])(context, builder, given[position]).data

            residual_at, gradient_at, words_at, values_at, tally_at = map(data, (0, 1, 6, 7, 9))
            start, stop, tau, base = given[2:6]
            tau_lanes = _splat(builder, tau)
            # Slots in the function's entry block: LLVM turns them into registers.
            count = cgutils.alloca_once_value(builder, given[8])
            bad = cgutils.alloca_once_value(builder, ir.Constant(_I16, 0))
            squares = cgutils.alloca_once(builder, _VF)
            builder.store(_constant(_VF, 0.0), squares)

            with cgutils.for_range_slice(builder, start, stop, ir.Constant(_I64, LANES), _I64) as (i, _):
                residual_pointer = _pointer(builder, residual_at, i, _VF)
                before = builder.load(residual_pointer, align=4)
                gradient_lanes = builder.load(_pointer(builder, gradient_at, i, _VF), align=4)
                total = builder.fadd(before, gradient_lanes)
                total_bits = builder.bitcast(total, _VI)
                sign = builder.and_(total_bits, _constant(_VI, _SIGN))
                magnitude_bits = builder.and_(total_bits, _constant(_VI, _MAGNITUDE))
                magnitude = builder.bitcast(magnitude_bits, _VF)
                finite = builder.icmp_unsigned("<", magnitude_bits, _constant(_VI, _INFINITY))
                broken = builder.bitcast(builder.not_(finite), _I16)
                builder.store(builder.or_(builder.load(bad), broken), bad)
                reaches = builder.fcmp_ordered(">" if rule == "strom" else ">=", magnitude, tau_lanes)
                hit = builder.and_(reaches, finite)

                at = builder.load(count)
                position = _splat(builder, builder.trunc(builder.add(i, base), _I32))
                position = builder.add(position, ir.Constant(_VI, list(range(LANES))))
                word = builder.or_(
                    builder.shl(position, _constant(_VI, 1)),
                    builder.lshr(total_bits, _constant(_VI, 31)),
                )
                builder.store(_compress(builder, word, hit), _pointer(builder, words_at, at, _VI), align=4)

                if rule == "wgt":
                    quantum = total
                    value = _compress(builder, total_bits, hit)
                    builder.store(value, _pointer(builder, values_at, at, _VI), align=4)
                elif rule in ("bgt", "strom"):
                    quantum = _with_sign(builder, tau_lanes, sign)
                else:
                    level = _call(builder, "llvm.floor.v16f32", _VF, builder.fdiv(magnitude, tau_lanes))
                    most = _constant(_VF, 255.0)
                    level = builder.select(builder.fcmp_ordered("<", level, most), level, most)
                    quantum = _with_sign(builder, builder.fmul(level, tau_lanes), sign)
                    value = _compress(builder, builder.fptoui(level, _VI), hit)
                    value = builder.trunc(value, ir.VectorType(_I8, LANES))
                    builder.store(value, _pointer(builder, values_at, at, value.type), align=1)

                quantum = builder.select(hit, quantum, _constant(_VF, 0.0))
                kept = builder.select(finite, builder.fsub(total, quantum), before)
                builder.store(kept, residual_pointer, align=4)
                builder.store(builder.fadd(builder.load(squares), builder.fmul(kept, kept)), squares)
                hits = builder.ctpop(builder.bitcast(hit, _I16))
                builder.store(builder.add(at, builder.zext(hits, _I64)), count)

            lanes = builder.load(squares)
            block_squares = ir.Constant(_F32, 0.0)
            for lane in range(LANES):
                block_squares = builder.fadd(
                    block_squares, builder.extract_element(lanes, ir.Constant(_I32, lane))
                )
            increments = (
                builder.fpext(block_squares, ir.DoubleType()),
                builder.uitofp(builder.load(bad), ir.DoubleType()),
            )
            for position, increment in enumerate(increments):
                slot = builder.gep(tally_at, [ir.Constant(_I64, position)])
                builder.store(builder.fadd(builder.load(slot), increment), slot)
            return builder.load(count)

        return signature, generate

    return blocks


_wgt_blocks, _bgt_blocks, _qgt_blocks, _strom_blocks = map(_make_blocks, ("wgt", "bgt", "qgt", "strom"))

# Four functions and not one that takes the rule: numba caches compiled code by module-level name.


@njit(nogil=True, cache=True)
def wgt(residual, gradient, stop, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """See `portable.wgt`; `stop` is a multiple of sixteen."""
    for start in range(0, stop, _BLOCK):
        end = min(start + _BLOCK, stop)
        sent = _wgt_blocks(residual, gradient, start, end, tau, base, words, values, sent, tally)
    return sent


@njit(nogil=True, cache=True)
def bgt(residual, gradient, stop, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """See `portable.bgt`; `stop` is a multiple of sixteen."""
    for start in range(0, stop, _BLOCK):
        end = min(start + _BLOCK, stop)
        sent = _bgt_blocks(residual, gradient, start, end, tau, base, words, values, sent, tally)
    return sent


@njit(nogil=True, cache=True)
def qgt(residual, gradient, stop, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """See `portable.qgt`; `stop` is a multiple of sixteen."""
    for start in range(0, stop, _BLOCK):
        end = min(start + _BLOCK, stop)
        sent = _qgt_blocks(residual, gradient, start, end, tau, base, words, values, sent, tally)
    return sent


@njit(nogil=True, cache=True)
def strom(residual, gradient, stop, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """See `portable.strom`; `stop` is a multiple of sixteen."""
    for start in range(0, stop, _BLOCK):
        end = min(start + _BLOCK, stop)
        sent = _strom_blocks(residual, gradient, start, end, tau, base, words, values, sent, tally)
    return sent


@njit(nogil=True, cache=True)
def wgt_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """See `portable.wgt_rows`."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        tau, base, tally = taus[i], rows[i, 3], tallies[i]
        whole = residual.size - residual.size % LANES
        sent = wgt(residual, gradient, whole, tau, base, words, values, sent, tally)
        sent = portable.wgt(residual, gradient, whole, tau, base, words, values, sent, tally)
        ends[i] = sent


@njit(nogil=True, cache=True)
def bgt_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """See `portable.bgt_rows`."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        tau, base, tally = taus[i], rows[i, 3], tallies[i]
        whole = residual.size - residual.size % LANES
        sent = bgt(residual, gradient, whole, tau, base, words, values, sent, tally)
        sent = portable.bgt(residual, gradient, whole, tau, base, words, values, sent, tally)
        ends[i] = sent


@njit(nogil=True, cache=True)
def qgt_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """See `portable.qgt_rows`."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        tau, base, tally = taus[i], rows[i, 3], tallies[i]
        whole = residual.size - residual.size % LANES
        sent = qgt(residual, gradient, whole, tau, base, words, values, sent, tally)
        sent = portable.qgt(residual, gradient, whole, tau, base, words, values, sent, tally)
        ends[i] = sent


@njit(nogil=True, cache=True)
def strom_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """See `portable.strom_rows`."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        tau, base, tally = taus[i], rows[i, 3], tallies[i]
        whole = residual.size - residual.size % LANES
        sent = strom(residual, gradient, whole, tau, base, words, values, sent, tally)
        sent = portable.strom(residual, gradient, whole, tau, base, words, values, sent, tally)
        ends[i] = sent
