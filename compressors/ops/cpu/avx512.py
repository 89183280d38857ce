"""The inner loop of the fused threshold pass for CPUs with AVX-512, sixteen elements at a time.

One loop without branches reads residual and gradient, writes the residual, and appends what is sent
to compact arrays through `vpcompressd`. A branch around the sending part would be mispredicted every
few groups, which costs more than sending nothing does. The compressed vector is stored whole, because
the masked form that writes to memory is microcoded on some CPUs: output arrays need sixteen spare
elements.

The loop is written as LLVM IR since no numba expression compiles to `vpcompressd`. Any CPU can run it, though
slowly: tests do. Only whole groups of sixteen are handled here; a parameter's tail goes through the portable
loop (`threshold.py`).
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .bits import splat

LANES = 16
"""Elements of a group; output arrays need as many spare ones."""
RULES = ("wgt", "bgt", "qgt", "strom")

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), *(ir.IntType(bits) for bits in (8, 16, 32, 64))
_VF, _VI = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_SENT = 10
_MAGNITUDE, _SIGN, _INFINITY = 0x7FFFFFFF, -0x80000000, 0x7F800000


def supported() -> bool:
    """Whether this CPU has what the pass needs."""
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))


def _constant(vector: ir.VectorType, value: Any) -> ir.Constant:
    return ir.Constant(vector, [value] * LANES)


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
    return _call(builder, "llvm.experimental.vector.compress.v16i32", _VI, vector, mask, undefined)


def _send_groups(
    typing_context: Any,
    rule: Any,
    lanes: Any,
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
    """Runs a rule over whole groups of sixteen in [start, stop); nothing without as many lanes.

    The rule and the lanes are tuples: their lengths are part of their types, so that each pair is compiled
    for itself, and kept. For the other arguments see `threshold.take_out`.
    """
    arguments = (rule, lanes, residual, gradient, start, stop, tau, base, words, values, sent, tally)
    signature, name = types.int64(*arguments), RULES[rule.count - 1]

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        def data(position: int) -> Any:
            return context.make_array(signature.args[position])(context, builder, given[position]).data

        if lanes.count != LANES:
            return given[_SENT]
        residual_at, gradient_at, words_at, values_at, tally_at = map(data, (2, 3, 8, 9, 11))
        start, stop, tau, base = given[4:8]
        tau_lanes = splat(builder, tau, LANES)
        # Slots in the function's entry block: LLVM turns them into registers.
        count = cgutils.alloca_once_value(builder, given[_SENT])
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
            reaches = builder.fcmp_ordered(">" if name == "strom" else ">=", magnitude, tau_lanes)
            hit = builder.and_(reaches, finite)

            at = builder.load(count)
            position = splat(builder, builder.trunc(builder.add(i, base), _I32), LANES)
            position = builder.add(position, ir.Constant(_VI, list(range(LANES))))
            word = builder.or_(
                builder.shl(position, _constant(_VI, 1)),
                builder.lshr(total_bits, _constant(_VI, 31)),
            )
            builder.store(_compress(builder, word, hit), _pointer(builder, words_at, at, _VI), align=4)

            if name == "wgt":
                quantum = total
                value = _compress(builder, total_bits, hit)
                builder.store(value, _pointer(builder, values_at, at, _VI), align=4)
            elif name in ("bgt", "strom"):
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

        lane_squares = builder.load(squares)
        block_squares = ir.Constant(_F32, 0.0)
        for lane in range(LANES):
            block_squares = builder.fadd(
                block_squares, builder.extract_element(lane_squares, ir.Constant(_I32, lane))
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


# Any: what a kernel calls has not the signature that the decorator's types promise.
send_groups: Any = intrinsic(_send_groups)
