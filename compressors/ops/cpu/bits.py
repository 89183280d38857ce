"""64-bit loads and stores at any byte, trailing zeros and ones: what bit streams are read and written with.

None of them checks its address. Streams are little endian, the lowest bit of a byte first.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_I1, _I8, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(64)

SPARE = 8
"""Bytes that must lie behind the first byte of a load or store."""


def _word_at(context: Any, builder: Any, array_type: Any, array: Any, byte: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    address = builder.gep(builder.bitcast(data, _I8.as_pointer()), [byte])
    return builder.bitcast(address, _I64.as_pointer())


def _load64(typing_context: Any, array: Any, byte: Any) -> Any:
    """The eight bytes of `array` (contiguous) from `byte` (int64) on, as a uint64."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(_word_at(context, builder, signature.args[0], given[0], given[1]), align=1)

    return types.uint64(array, types.int64), generate


def _store64(typing_context: Any, array: Any, byte: Any, word: Any) -> Any:
    """Writes a uint64 to the eight bytes of `array` (contiguous) from `byte` (int64) on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[2], _word_at(context, builder, signature.args[0], given[0], given[1]), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    """How many zeros lie below the lowest bit set of a uint64; 64 for 0."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(_I1, 0))

    return types.uint64(types.uint64), generate


def _population(typing_context: Any, word: Any) -> Any:
    """How many bits of a uint64 are set, as a uint64."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.ctpop(given[0])

    return types.uint64(types.uint64), generate


# Any: what a kernel calls has not the signature that the decorator's types promise.
load64: Any = intrinsic(_load64)
store64: Any = intrinsic(_store64)
trailing_zeros: Any = intrinsic(_trailing_zeros)
ones: Any = intrinsic(_population)


@njit(nogil=True, cache=True)
def any_has(symbols, bits):  # type: ignore[no-untyped-def]
    """Whether some symbol has all of some bits."""
    many = 0
    for symbol in symbols:
        many |= (symbol & bits) == bits
    return many != 0
