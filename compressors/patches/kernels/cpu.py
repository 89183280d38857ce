"""The passes of weight patches in the CPU's memory, see `PatchOps`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from ...ops.array import readonly
from ...ops.cpu.threads import Result, run_all
from . import KEY_BLOCK, Comparison, PatchOps, Piece, Steps

_CACHED = 2**20
"""Bit patterns that are compared at once: what is computed from them stays in caches."""

Patterns: TypeAlias = Any
"""NumPy arrays of bit patterns: uint8, uint16, uint32 or uint64, contiguous."""


def odd(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output for some states, made odd."""
    x = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


_KEYS = odd(np.arange(KEY_BLOCK, dtype=np.uint64))


@njit(nogil=True, cache=True)
def _digest(patterns, keys, factors, begin):  # type: ignore[no-untyped-def]
    """The digest of patterns, the first of which has key begin; factors are those of the blocks of keys."""
    total, low = np.uint64(0), 0
    for factor in factors:
        high = min(patterns.size, low + keys.size - begin)
        # Slices whose loop is vectorized.
        some, beside, part = patterns[low:high], keys[begin : begin + high - low], np.uint64(0)
        for i in range(some.size):
            part += np.uint64(some[i]) * beside[i]
        total, low, begin = total + part * factor, high, 0
    return total


def _factors(first: int, last: int) -> NDArray[np.uint64]:
    """The factors of the blocks of keys that two indices are in, and of those between."""
    return odd(np.arange(KEY_BLOCK + first // KEY_BLOCK, KEY_BLOCK + last // KEY_BLOCK + 1, dtype=np.uint64))


def _digest_of(patterns: Patterns, first: int) -> int:
    factors = _factors(first, first + patterns.size - 1)
    return int(_digest(readonly(patterns), readonly(_KEYS), readonly(factors), first % KEY_BLOCK))


def change_of(before: Patterns, after: Patterns, indices: NDArray[np.int64]) -> int:
    """What patterns that change, at ascending indices, add to a digest, modulo 2^64."""
    if not indices.size:
        return 0
    factors = _factors(int(indices[0]), int(indices[-1]))
    keys = _KEYS[indices & KEY_BLOCK - 1] * factors[(indices >> 10) - (indices[0] >> 10)]
    return int(((after.astype(np.uint64) - before) * keys).sum())


def _flips(patterns: Patterns) -> Patterns:
    """What is xor-ed with patterns of floats for their order: all bits of negative ones, the others' sign."""
    signed = patterns.view(f"i{patterns.itemsize}")
    return (signed >> 8 * patterns.itemsize - 1 | np.iinfo(signed.dtype).min).view(patterns.dtype)


def _order(patterns: Patterns, floats: bool) -> Patterns:
    return patterns ^ _flips(patterns) if floats else patterns


def _steps(before: Patterns, after: Patterns, floats: bool) -> Patterns:
    difference = _order(after, floats) - _order(before, floats)
    return difference << 1 ^ -(difference >> 8 * before.itemsize - 1)


def advanced(before: Patterns, steps: NDArray[Any], floats: bool) -> Patterns:
    """The patterns that steps lead to."""
    steps = steps.astype(before.dtype)
    order = _order(before, floats) + (steps >> 1 ^ -(steps & 1))
    return order ^ _flips(~order) if floats else order


def _differing(before: Patterns, after: Patterns) -> tuple[NDArray[np.int64], Patterns, Patterns]:
    """Where patterns differ, and these; compares 64-bit words first."""
    per_word = 8 // before.itemsize
    if rest := before.size % per_word:
        differing = [_differing(before[:-rest], after[:-rest])]
        some = np.flatnonzero(before[-rest:] != after[-rest:]) + before.size - rest
        differing.append((some, before[some], after[some]))
        indices, old, new = map(np.concatenate, zip(*differing, strict=True))
        return indices, old, new
    words = np.flatnonzero(before.view(np.uint64) != after.view(np.uint64))
    old, new = (patterns.view(np.uint64)[words].view(before.dtype) for patterns in (before, after))
    some, shift = np.flatnonzero(old != new), per_word.bit_length() - 1
    return words[some >> shift] << shift | some & per_word - 1, old[some], new[some]


def _compare(before: Piece, after: Piece, digested: bool) -> Comparison:
    old, new = bits_of(before), bits_of(after)
    positions, steps = [np.empty(0, np.uint32)], [np.empty(0, old.dtype)]
    digest = change = 0
    for low in range(0, old.size, _CACHED):
        part = old[low : low + _CACHED]
        if digested:
            digest += _digest_of(part, before.first + low)
        indices, part, other = _differing(part, new[low : low + _CACHED])
        change += change_of(part, other, indices + (before.first + low))
        positions.append((indices + low).astype(np.uint32))
        steps.append(_steps(part, other, before.floats))
    return Comparison(Steps(np.concatenate(positions), np.concatenate(steps)), digest % 2**64, change % 2**64)


def _take_steps(piece: Piece, steps: Steps) -> tuple[Tensor, int]:
    before, indices = bits_of(piece)[steps.positions], steps.positions.astype(np.int64) + piece.first
    after = advanced(before, steps.steps, piece.floats)
    return torch.from_numpy(after).view(piece.bits.dtype), change_of(before, after, indices)


def _scatter(piece: Piece, steps: Steps, bits: Tensor) -> None:
    bits_of(piece)[steps.positions] = bits.numpy().view(f"u{bits.element_size()}")


def bits_of(piece: Piece) -> Patterns:
    """A piece's patterns, in the same memory."""
    patterns: Patterns = piece.bits.numpy().view(f"u{piece.bits.element_size()}")
    return patterns


class CpuPatching(PatchOps):
    """See `PatchOps`."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def digest(self, pieces: Sequence[Piece]) -> list[int]:
        return self._run(lambda piece: _digest_of(bits_of(piece), piece.first), pieces)

    def compare(self, before: Sequence[Piece], after: Sequence[Piece], *, digested: bool) -> list[Comparison]:
        return self._run(partial(_compare, digested=digested), before, after)

    def take_steps(self, pieces: Sequence[Piece], steps: Sequence[Steps]) -> list[tuple[Tensor, int]]:
        return self._run(_take_steps, pieces, steps)

    def scatter(self, pieces: Sequence[Piece], steps: Sequence[Steps], bits: Sequence[Tensor]) -> list[None]:
        return self._run(_scatter, pieces, steps, bits)

    def _run(self, function: Callable[..., Result], *columns: Sequence[Any]) -> list[Result]:
        return run_all([partial(function, *row) for row in zip(*columns, strict=True)], self._threads)
