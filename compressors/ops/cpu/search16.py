"""A search tree with sixteen-way nodes: how many of a block's sorted cuts an int32 key reaches.

One step compares the key with sixteen cuts at once and counts; two steps find one of 256 bins. The
vector operations are plain LLVM, which any CPU gets in the widths that it has.

A tree is a row of levels, the coarsest first. The finest holds the lower ends of all bins, the first of
them -2^31, so that every key reaches one; each level above holds every sixteenth of the one below. A
level is filled up to a multiple of sixteen with 2^31 - 1, which no finite number's key reaches.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

WAYS = 16
_I16, _I32, _I64 = (ir.IntType(bits) for bits in (16, 32, 64))
_VECTOR = ir.VectorType(_I32, WAYS)
_BELOW_ALL, _ABOVE_ALL = np.int32(-(2**31)), np.int32(2**31 - 1)


def _count_reached_by(typing_context: Any, tree: Any, node: Any, key: Any) -> Any:
    """How many of tree[node : node + 16] (contiguous int32) are at most key (int32), as an int64."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        address = builder.bitcast(builder.gep(data, [given[1]]), _VECTOR.as_pointer())
        cuts = builder.load(address, align=4)
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(undefined, given[2], ir.Constant(_I32, 0))
        keys = builder.shuffle_vector(first, undefined, ir.Constant(_VECTOR, [0] * WAYS))
        reached = builder.bitcast(builder.icmp_signed("<=", cuts, keys), _I16)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_I16, [_I16]), "llvm.ctpop.i16"
        )
        return builder.zext(builder.call(function, [reached]), _I64)

    return types.int64(tree, types.int64, types.int32), generate


_count_reached: Any = intrinsic(_count_reached_by)


def tree_size(bits: int) -> int:
    """How many int32 the tree of 2^bits bins takes."""
    return sum(max(WAYS, 2 ** (bits - shift)) for shift in range(0, bits, 4))


@njit(nogil=True, cache=True)
def build_tree(ordered, bits, tree):  # type: ignore[no-untyped-def]
    """Fills a tree, int32 [tree_size(bits)], from a block's sorted keys, int32 [B], B at least 1.

    There are 2^bits bins; bin j begins at ordered[floor(j B / 2^bits)].
    """
    tree[:] = _ABOVE_ALL
    level = 0
    for shift in range((bits - 1) // 4 * 4, -1, -4):
        size = 1 << (bits - shift)
        tree[level] = _BELOW_ALL
        for i in range(1, size):
            tree[level + i] = ordered[((i << shift) * ordered.size) >> bits]
        level += max(size, WAYS)


@njit(nogil=True, cache=True)
def find_bins(tree, bits, keys, bins):  # type: ignore[no-untyped-def]
    """Writes the bin of every key: how many of the bins above 0 it reaches.

    Keys are int32, order keys of finite numbers, at least as many as `bins`, unsigned integers.
    """
    if bits <= 4:
        for j in range(bins.size):
            bins[j] = _count_reached(tree, 0, keys[j]) - 1
    elif bits <= 8:  # the usual case: two levels, and the second one begins at 16
        for j in range(bins.size):
            node = _count_reached(tree, 0, keys[j]) * WAYS
            bins[j] = node - WAYS + _count_reached(tree, node, keys[j]) - 1
    else:
        for j in range(bins.size):
            level, place = 0, 0
            for shift in range((bits - 1) // 4 * 4, -1, -4):
                place = place * WAYS + _count_reached(tree, level + place * WAYS, keys[j]) - 1
                level += max(1 << (bits - shift), WAYS)
            bins[j] = place
