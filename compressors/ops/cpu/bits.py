"""Arrays at addresses, and what bit streams are read and written with. Nothing here checks an address.

Tables have the arrays of many parameters, so that one kernel call takes all. A row is int64: the address of a
residual, the address of a gradient, their elements, and the first one's position in the update. The arrays
must live until the kernel has returned. Streams are little endian, the lowest bit of a byte first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]  # numba names it in no __all__
from numba.extending import intrinsic

from ..array import Bytes, Numbers

RESIDUAL, GRADIENT, ELEMENTS, BASE = range(4)
Rows = Numbers

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))

SPARE = 8
"""Bytes that must lie behind the first byte of a load or store."""


class Section(NamedTuple):
    """A part of a message that is ready to be written."""

    size: int
    """Bytes, exactly."""
    write: Callable[[Bytes], None]
    """Writes them to uint8 [size], zeros."""


def splat(builder: Any, scalar: Any, lanes: int) -> Any:
    """A vector that has a scalar in all lanes; LLVM IR."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


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


def _pointer(typing_context: Any, address: Any) -> Any:
    """An int64 as the address of float32 elements."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


# Any: what a kernel calls has not the signature that the decorator's types promise.
load64: Any = intrinsic(_load64)
store64: Any = intrinsic(_store64)
trailing_zeros: Any = intrinsic(_trailing_zeros)
ones: Any = intrinsic(_population)
_to_float32: Any = intrinsic(_pointer)


@njit(nogil=True, cache=True)
def any_has(symbols, bits):  # type: ignore[no-untyped-def]
    """Whether some symbol has all of some bits."""
    many = 0
    for symbol in symbols:
        many |= (symbol & bits) == bits
    return many != 0


@njit(nogil=True, cache=True, inline="always")
def floats(address, elements):  # type: ignore[no-untyped-def]
    """The float32 [elements] at an address."""
    return carray(_to_float32(address), (elements,))
