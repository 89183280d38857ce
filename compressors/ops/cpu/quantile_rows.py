"""Quantizes many parameters to bins of equal population in a few calls; `quantile.py` defines the bins."""

from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..array import host
from ..results import QuantizedPass, Quantizing
from .block_rows import BLOCK, ELEMENTS, keeps, opened, residual_of, table_of, take_up_rows
from .blockwise import finite_each
from .quantile import SORTED_AT_ONCE, fill_keys, quantize_blocks
from .rows import Rows
from .search16 import tree_size
from .threads import portions, run_all


@njit(nogil=True, cache=True)
def _fill_rows(rows, symbols, begins, keys):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        gradient = opened(rows[i], symbols)[0]
        a = residual_of(rows[i]) if keeps(rows[i]) else gradient
        fill_keys(a, keys[begins[i] : begins[i] + a.size])


@njit(nogil=True, cache=True)
def _quantize_rows(rows, symbols, begins, ordered, bits, means, exponents, tree, squares):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        gradient, own, block, at, _ = opened(rows[i], symbols)
        keep = keeps(rows[i])
        a = residual_of(rows[i]) if keep else gradient
        keys = ordered[begins[i] : begins[i] + a.size]
        squares[i] = quantize_blocks(a, keep, keys, block, bits, tree, own, means[at], exponents[at])


def quantile_rows(
    work: Quantizing, means: NDArray[np.uint16], exponents: NDArray[np.int8], threads: int = 1
) -> list[QuantizedPass]:
    """`quantile.quantile_pass` over parameters whose blocks are sorted at once.

    Args:
        work: the parameters.
        means: uint16 [offsets.all_blocks, 2^bits]; each one's stand where `offsets` says.
        exponents: int8 [offsets.all_blocks]; likewise.
        threads: how many to use; the result does not depend on it.
    """
    rows, by, _wide = table_of(work, SORTED_AT_ONCE)
    symbols, keys = host(work.symbols), np.empty((len(rows), 2), np.int32)
    parts = portions(rows[:, ELEMENTS], threads)
    run_all([partial(take_up_rows, rows[at], keys[at]) for at in parts], threads)
    broken = set(by[~finite_each(keys[:, 0], keys[:, 1])].tolist())
    if broken:
        good = ~np.isin(by, [*broken])
        rows, by = rows[good], by[good]
    squares = np.empty(len(rows))

    def quantize(at: slice) -> None:
        _quantize_some(rows[at], symbols, work.bits, means, exponents, squares[at])

    groups = portions(rows[:, ELEMENTS], 2, SORTED_AT_ONCE)  # what is sorted stays in the caches
    run_all([partial(quantize, at) for at in groups], threads)
    sums = np.zeros(len(work.gradients))
    np.add.at(sums, by, squares)  # in order
    return [QuantizedPass(one, i in broken) for i, one in enumerate(sums.tolist())]


def _quantize_some(
    rows: Rows,
    symbols: NDArray[Any],
    bits: int,
    means: NDArray[np.uint16],
    exponents: NDArray[np.int8],
    squares: NDArray[np.float64],
) -> None:
    sizes, blocks = rows[:, ELEMENTS], rows[:, BLOCK]
    begins = np.cumsum(sizes) - sizes
    keys = np.empty(int(sizes.sum()), np.int32)
    _fill_rows(rows, symbols, begins, keys)
    evens = begins + sizes - sizes % blocks
    for begin, even, end, block in zip(
        begins.tolist(), evens.tolist(), (begins + sizes).tolist(), blocks.tolist(), strict=True
    ):
        if even > begin:
            keys[begin:even].reshape(-1, block).sort(axis=1)
        if end > even:
            keys[even:end].sort()
    tree = np.empty(tree_size(bits), np.int32)
    _quantize_rows(rows, symbols, begins, keys, bits, means, exponents, tree, squares)
