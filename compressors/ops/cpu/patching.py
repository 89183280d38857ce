"""Differences between bit patterns in order, and digests of bit patterns: what weight patches are made of.

An element is an unsigned number of 1, 2, 4 or 8 bytes. Floats are put in order (their sign and magnitude
becomes one number that ascends with them), so that neighbours differ by one. A step is a difference modulo
2^bits in zigzag: 0, -1, 1, -2, ... become 0, 1, 2, 3, ....

The digest of a tensor is the sum over its elements of key(i) * bits modulo 2^64, where
key(i) = odd(i mod 1024) * odd(1024 + i // 1024). It is linear: what a patch adds to it follows from the
elements that change, and shards add up. An element that changes alone always changes it. It finds mistakes
and damage; it does not protect from patches forged on purpose.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes, readonly
from ..interface import Ops
from ..patching import Changes, PatchOps, Piece, Steps, Taken, Words
from .bits import SPARE, load64, store64
from .threads import run_all

BLOCK = 1024
"""Elements whose keys have one factor in common."""
EXACT = 8
"""Values below are symbols by themselves; above, a symbol has the highest three bits."""
SYMBOLS = EXACT + 4 * 61
UNITS = 3
"""Steps below are 0 and one unit either way, which have no value of their own."""

_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
_ALL = np.uint64(2**64 - 1)

Bits = NDArray[Any]
"""Bit patterns: uint8, uint16, uint32 or uint64, contiguous."""


@njit(nogil=True, cache=True)
def odd(x):  # type: ignore[no-untyped-def]
    """An odd number that looks like chance: SplitMix64's output for the state x, and the lowest bit set."""
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | _ONE


_KEYS: NDArray[np.uint64] = odd.py_func(np.arange(BLOCK, dtype=np.uint64))


def factor(name: str) -> int:
    """What the digest of a tensor of this name is multiplied by in the sum over all tensors; odd."""
    return (
        int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") | 1
    )


@njit(nogil=True, cache=True)
def _order(bits, mask, floats):  # type: ignore[no-untyped-def]
    """Bits of an element as a number in order, modulo its `mask`."""
    top = (mask >> _ONE) + _ONE
    return bits ^ (mask if bits & top else top) if floats else bits


@njit(nogil=True, cache=True)
def _step(before, after, mask, floats):  # type: ignore[no-untyped-def]
    """The step between the bits of two elements, uint64."""
    difference = (_order(after, mask, floats) - _order(before, mask, floats)) & mask
    return (difference << _ONE & mask) ^ (mask if difference > mask >> _ONE else np.uint64(0))


@njit(nogil=True, cache=True)
def _stepped(before, step, mask, floats):  # type: ignore[no-untyped-def]
    """The bits that a step leads to."""
    number = (
        _order(before, mask, floats) + ((step >> _ONE) ^ (mask if step & _ONE else np.uint64(0)))
    ) & mask
    top = (mask >> _ONE) + _ONE
    return number ^ (top if number & top else mask) if floats else number


@njit(nogil=True, cache=True)
def _mask(bits):  # type: ignore[no-untyped-def]
    return _ALL >> np.uint64(64 - 8 * bits.itemsize)


@njit(nogil=True, cache=True)
def _digest(bits, keys, first):  # type: ignore[no-untyped-def]
    """The digest of elements of a tensor, from element number `first` on."""
    total, low = np.uint64(0), 0
    while low < bits.size:
        key = (first + low) % BLOCK
        high = min(bits.size, low + BLOCK - key)
        own, beside, part = bits[low:high], keys[key : key + high - low], np.uint64(0)
        for j in range(own.size):
            part += np.uint64(own[j]) * beside[j]
        total += part * odd(BLOCK + (first + low) // BLOCK)
        low = high
    return total


@njit(nogil=True, cache=True)
def _differing(before, after, ends, low, high, scratch, words):  # type: ignore[no-untyped-def]
    """Writes position << 1 of the elements [low, high) that differ to words; returns how many there are.

    First 64 bits at a time, then what they hold; without branches, which would often be mispredicted.
    """
    width, count, wide = before.itemsize, np.int64(0), np.int64(0)
    each = 8 // width
    rest = high - (high - low) % each
    for i in range(low, rest, each):
        scratch[wide] = i
        wide += np.int64(load64(ends[0], i * width) != load64(ends[1], i * width))
    for i in scratch[:wide]:
        for j in range(i, i + each):
            words[count] = np.uint32(j << 1)
            count += np.int64(before[j] != after[j])
    for j in range(rest, high):
        words[count] = np.uint32(j << 1)
        count += np.int64(before[j] != after[j])
    return count


@njit(nogil=True, cache=True)
def _compare(before, after, ends, keys, first, floats, digested, words, steps):  # type: ignore[no-untyped-def]
    """Writes words and steps as long as there is room; returns count, whether it was enough, two digests."""
    count, room, mask = np.int64(0), True, _mask(before)
    total = change = np.uint64(0)
    scratch, wide, low = np.empty(BLOCK + 8, np.uint32), np.empty(BLOCK + 8, np.int64), 0
    while low < before.size:
        key = (first + low) % BLOCK
        high = min(before.size, low + BLOCK - key)
        if digested:
            total += _digest(before[low:high], keys, first + low)
        own = _differing(before, after, ends, low, high, wide, scratch)
        room = room and count + own <= words.size
        part = np.uint64(0)
        for i in range(own):
            j = np.int64(scratch[i] >> np.uint32(1))
            old, new = np.uint64(before[j]), np.uint64(after[j])
            part += (new - old) * keys[key + j - low]
            if room:
                words[count + i] = scratch[i]
                steps[count + i] = _step(old, new, mask, floats)
        if own:
            change += part * odd(BLOCK + (first + low) // BLOCK)
        count += own
        low = high
    return count, room, total, change


@njit(nogil=True, cache=True)
def _all_steps(before, after, floats, steps):  # type: ignore[no-untyped-def]
    mask = _mask(before)
    for i in range(before.size):
        steps[i] = _step(np.uint64(before[i]), np.uint64(after[i]), mask, floats)


@njit(nogil=True, cache=True)
def _take_steps(bits, words, steps, keys, first, floats, out):  # type: ignore[no-untyped-def]
    """Writes what bits become to out; returns what that adds to the digest."""
    change, mask, block, scale = np.uint64(0), _mask(bits), np.int64(-1), _ONE
    for i in range(words.size):
        j = np.int64(words[i] >> np.uint32(1))
        old = np.uint64(bits[j])
        new = _stepped(old, np.uint64(steps[i]), mask, floats)
        out[i] = new
        j += first
        if j >> 10 != block:
            block = j >> 10
            scale = odd(BLOCK + block)
        change += (new - old) * keys[j & BLOCK - 1] * scale
    return change


@njit(nogil=True, cache=True)
def _scatter(bits, words, new):  # type: ignore[no-untyped-def]
    for i in range(words.size):
        bits[words[i] >> np.uint32(1)] = new[i]


@njit(nogil=True, cache=True)
def _divide(words, steps, units, others, other_steps):  # type: ignore[no-untyped-def]
    i = j = 0
    for at in range(words.size):
        if steps[at] < UNITS:
            units[i] = words[at] | np.uint32(steps[at] & np.uint32(1))
            i += 1
        else:
            others[j], other_steps[j] = words[at], steps[at]
            j += 1


@njit(nogil=True, cache=True)
def _count_units(steps):  # type: ignore[no-untyped-def]
    count = np.int64(0)
    for step in steps:
        count += np.int64(step < UNITS)
    return count


@njit(nogil=True, cache=True)
def _merge(units, others, other_steps, words, steps):  # type: ignore[no-untyped-def]
    """Two ascending lists as one; whether no position is in both."""
    i = j = 0
    for at in range(words.size):
        unit = units[i] if i < units.size else np.uint32(0xFFFFFFFF)
        other = others[j] if j < others.size else np.uint32(0xFFFFFFFF)
        if unit >> np.uint32(1) == other >> np.uint32(1):
            return False
        if unit < other:
            words[at], steps[at] = unit & np.uint32(0xFFFFFFFE), np.uint32(2) - (unit & np.uint32(1))
            i += 1
        else:
            words[at], steps[at] = other, other_steps[j]
            j += 1
    return True


@njit(nogil=True, cache=True)
def _log2(value):  # type: ignore[no-untyped-def]
    exponent = 0
    for step in (32, 16, 8, 4, 2, 1):
        if value >> np.uint64(step):
            value >>= np.uint64(step)
            exponent += step
    return exponent


@njit(nogil=True, cache=True)
def _low_bits(symbol):  # type: ignore[no-untyped-def]
    """How many bits of a value its symbol leaves out."""
    return np.int64(symbol - EXACT >> 2) + 1 if symbol >= EXACT else np.int64(0)


@njit(nogil=True, cache=True)
def _count_low_bits(symbols):  # type: ignore[no-untyped-def]
    total, valid = np.int64(0), True
    for symbol in symbols:
        total += _low_bits(np.int64(symbol))
        valid &= symbol < SYMBOLS
    return total if valid else np.int64(-1)


@njit(nogil=True, cache=True)
def _split(values, less, symbols, low):  # type: ignore[no-untyped-def]
    """Writes symbols and low bits (with SPARE + 8 bytes behind them) of values less a number."""
    bit = np.int64(0)
    for i in range(values.size):
        value = np.uint64(values[i]) - np.uint64(less)
        if value < np.uint64(EXACT):
            symbols[i] = value
            continue
        left = _log2(value) - 2
        symbols[i] = np.uint64(EXACT + ((left - 1) << 2)) + (value >> np.uint64(left) & _THREE)
        value &= (_ONE << np.uint64(left)) - _ONE
        byte, shift = bit >> 3, np.uint64(bit & 7)
        store64(low, byte, load64(low, byte) | value << shift)
        if shift:
            store64(low, byte + 8, value >> (np.uint64(64) - shift))
        bit += left
    return bit


@njit(nogil=True, cache=True)
def _join(symbols, low, more, values):  # type: ignore[no-untyped-def]
    """The reverse of `_split`; low has SPARE + 8 bytes behind its bits."""
    bit = np.int64(0)
    for i in range(symbols.size):
        symbol = np.int64(symbols[i])
        value = np.uint64(symbol)
        if symbol >= EXACT:
            left = _low_bits(symbol)
            byte, shift = bit >> 3, np.uint64(bit & 7)
            word = load64(low, byte) >> shift
            if shift:
                word |= load64(low, byte + 8) << (np.uint64(64) - shift)
            value = (
                np.uint64(4 | symbol - EXACT & 3) << np.uint64(left) | word & (_ONE << np.uint64(left)) - _ONE
            )
            bit += left
        values[i] = value + np.uint64(more)


# What others call


class CpuPatching(PatchOps):
    """See `PatchOps`."""

    def __init__(self, ops: Ops) -> None:
        """Shares work among as many threads as the CPU's other passes."""
        self._threads = ops.threads

    def digest(self, pieces: Sequence[Piece]) -> list[int]:
        work = [partial(_digest, readonly(bits_of(piece)), _KEYS, piece.first) for piece in pieces]
        return [int(each) for each in run_all(work, self._threads)]

    def compare(self, before: Sequence[Piece], after: Sequence[Piece], *, digested: bool) -> list[Changes]:
        work = [partial(_changes, *pair, digested) for pair in zip(before, after, strict=True)]
        return run_all(work, self._threads)

    def take_steps(self, pieces: Sequence[Piece], steps: Sequence[Steps]) -> list[Taken]:
        return run_all([partial(_taken, *pair) for pair in zip(pieces, steps, strict=True)], self._threads)

    def scatter(self, pieces: Sequence[Piece], taken: Sequence[Taken]) -> None:
        work = [
            partial(
                _scatter, bits_of(piece), each.words, each.bits.numpy().view(f"u{each.bits.element_size()}")
            )
            for piece, each in zip(pieces, taken, strict=True)
        ]
        run_all(work, self._threads)


def bits_of(piece: Piece) -> Bits:
    """Its elements in the CPU's memory: a copy, where they are on a device."""
    bits: Bits = piece.tensor.cpu().numpy().view(f"u{piece.tensor.element_size()}")
    return bits


def _changes(before: Piece, after: Piece, digested: bool) -> Changes:
    old, new = readonly(bits_of(before)), readonly(bits_of(after))
    # Pages that nothing is written to take no memory.
    words = np.empty(old.size // 2, np.uint32)
    steps = np.empty(words.size, np.uint64 if old.itemsize == 8 else np.uint32)
    ends = old.view(np.uint8), new.view(np.uint8)
    count, room, total, change = _compare(
        old, new, ends, _KEYS, before.first, before.floats, digested, words, steps
    )
    there = count if room else 0
    return Changes(int(count), words[:there], steps[:there], int(total), int(change))


def _taken(piece: Piece, steps: Steps) -> Taken:
    bits = readonly(bits_of(piece))
    out = np.empty(steps.words.size, bits.dtype)
    words = readonly(steps.words)
    change = _take_steps(bits, words, readonly(steps.steps), _KEYS, piece.first, piece.floats, out)
    return Taken(words, torch.from_numpy(out).view(piece.tensor.dtype), int(change))


def all_steps(before: Piece, after: Piece) -> NDArray[Any]:
    """The step of each element, 0 where nothing changed."""
    old, new = readonly(bits_of(before)), readonly(bits_of(after))
    steps = np.empty(old.size, np.uint64 if old.itemsize == 8 else np.uint32)
    _all_steps(old, new, before.floats, steps)
    return steps


def divide(words: Words, steps: NDArray[Any]) -> tuple[Words, Words, NDArray[Any]]:
    """The reverse of `merge`, of steps above 0."""
    count = _count_units(steps)
    units, others = np.empty(count, np.uint32), np.empty(words.size - count, np.uint32)
    other_steps = np.empty(others.size, steps.dtype)
    _divide(words, steps, units, others, other_steps)
    return units, others, other_steps


def merge(units: Words, others: Words, steps: NDArray[Any]) -> tuple[Words, NDArray[Any]]:
    """Changes by one unit (position << 1 | sign) and others (position << 1) in one order, with their steps.

    Raises:
        CorruptMessage: an element is in both.
    """
    words, merged = (
        np.empty(units.size + others.size, np.uint32),
        np.empty(units.size + others.size, steps.dtype),
    )
    if not _merge(units, others, steps, words, merged):
        raise CorruptMessage("an element changes by one unit and by another step")
    return words, merged


def split(values: NDArray[Any], less: int) -> tuple[NDArray[np.uint8], Bytes]:
    """Symbols of values less a number, and the bits that symbols leave out, one after the other."""
    symbols = np.empty(values.size, np.uint8)
    low = np.zeros(values.size * values.itemsize + SPARE + 8, np.uint8)
    return symbols, low[: (_split(values, less, symbols, low) + 7) // 8]


def check_low_bits(symbols: NDArray[Any], low: Bytes) -> None:
    """Refuses symbols and low bits that `split` does not make.

    Raises:
        CorruptMessage: a symbol is unknown, or low bits are not as many as the symbols leave out.
    """
    bits = _count_low_bits(symbols)
    if bits < 0:
        raise CorruptMessage(
            f"symbols: a step has symbol {int(symbols.max())}, the last one is {SYMBOLS - 1}"
        )
    if low.size != (bits + 7) // 8 or (bits % 8 and low[-1] >> (bits % 8)):
        raise CorruptMessage(
            f"low bits: {low.size} bytes for {bits} bits, or bits behind the last one are set"
        )


def join(symbols: NDArray[np.uint8], low: Bytes, more: int) -> NDArray[np.uint64]:
    """The reverse of `split`, of what `check_low_bits` lets pass; uint64 [k]."""
    values = np.empty(symbols.size, np.uint64)
    _join(symbols, np.append(low, np.zeros(SPARE + 8, np.uint8)), more, values)
    return values
