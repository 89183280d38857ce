"""Golomb-Rice coding on the emulated device against the CPU's, byte for byte."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import golomb_rice as cpu
from taugrad.compressors.ops.cpu.golomb_rice_blocks import LIMITS
from taugrad.compressors.ops.cuda import golomb_rice
from taugrad.compressors.ops.cuda.faults import Faults

LAST_N = 2**31 - 1
CANARY = 0xA5
with_or_without_signs = in_turn("signed", [True, False])


def words_at(positions: Any, seed: int = 0) -> Any:
    positions = np.asarray(positions, np.int64)
    signs = np.random.default_rng(seed).integers(0, 2, positions.size)
    return (positions << 1 | signs).astype(np.uint32)


def random_words(k: int, p: float) -> Any:
    """Each position sent with probability p."""
    return words_at(np.cumsum(np.random.default_rng(k).geometric(p, k)) - 1, k)


def section_of(words: Any, signed: bool, block_log2: int) -> Any:
    out = np.empty(cpu.size(words, signed, block_log2=block_log2), np.uint8)
    cpu.encode(words, signed, out, block_log2=block_log2)
    return out


def written(device: Any, words: Any, signed: bool, block_log2s: list[int], offset: int) -> Any:
    """The section, written between bytes that must be left alone."""
    plan = golomb_rice.plan(device, device.place(words), signed, block_log2s)
    fenced = device.place(np.full(plan.size + 32, CANARY, np.uint8))
    golomb_rice.encode(device, plan, fenced[offset : offset + plan.size])
    found = device.fetch(fenced)
    assert (np.delete(found, slice(offset, offset + plan.size)) == CANARY).all()
    return found[offset : offset + plan.size]


def read(device: Any, section: Any, n: int, k: int, signed: bool, offset: int = 0, behind: int = 0) -> Any:
    body = np.full(offset + section.size + behind, 0xFF, np.uint8)
    body[offset : offset + section.size] = section
    faults = Faults(device)
    words, used = golomb_rice.decode(device, device.place(body)[offset:], n, k, signed, faults)
    faults.check()
    assert used == section.size
    return device.fetch(words)


def check(device: Any, words: Any, signed: bool, block_log2: int, offset: int = 16) -> None:
    expected = section_of(words, signed, block_log2)
    np.testing.assert_array_equal(written(device, words, signed, [block_log2], offset), expected)
    n = int(words[-1] >> 1) + 1
    found = read(device, expected, n, words.size, signed, offset, behind=offset % 5)
    np.testing.assert_array_equal(found, words if signed else words & ~np.uint32(1))


@with_or_without_signs
@in_turn("block_log2", [4, 7, 10, 12, 14])
@in_turn("k", [1, 7, 8, 9, 31, 32, 33, 1000, 4097])
def test_sizes(device: Any, k: int, block_log2: int, signed: bool) -> None:
    check(device, random_words(k, 0.1), signed, block_log2, 16 + k % 4)


@with_or_without_signs
@in_turn("p", [1, 0.7, 0.05, 0.0004])
def test_several_blocks(device: Any, p: float, signed: bool) -> None:
    check(device, random_words(34_000, p), signed, 14, 17)


@with_or_without_signs
def test_every_parameter(device: Any, signed: bool) -> None:
    """Two words whose mean distance is at and just above each limit."""
    for limit in LIMITS:
        for span in (int(limit * 2) >> 16, (int(limit * 2) >> 16) + 1):
            last = min(max(span, 2) - 1, LAST_N - 1)
            for first in (0, last // 2, last - 1):
                check(device, words_at([first, last]), signed, 4)


@with_or_without_signs
def test_quotients_longer_than_the_window(device: Any, signed: bool) -> None:
    """Dense words around a gap make one quotient of nearly all of a block's bits."""
    for at in (0, 1, 2500, 16_383):
        positions = np.arange(16_384, dtype=np.int64)
        positions[at:] += 2 * 10**8
        check(device, words_at(positions), signed, 14, 19)


@with_or_without_signs
def test_clusters_and_last_positions(device: Any, signed: bool) -> None:
    rng = np.random.default_rng(3)
    runs = np.unique((rng.integers(0, LAST_N - 300, 40)[:, None] + np.arange(200)).reshape(-1))
    check(device, words_at(runs), signed, 12)
    check(device, words_at(np.arange(LAST_N - 5000, LAST_N)), signed, 12)
    check(device, words_at([LAST_N - 1]), signed, 4)


def test_the_shortest_of_several_block_lengths_is_taken(device: Any) -> None:
    rng = np.random.default_rng(5)
    gaps = np.concatenate([rng.geometric(p, 3000) for p in (0.5, 0.001, 0.1)])
    words = words_at(np.cumsum(gaps))
    log2s = [14, 12, 10, 8]
    size, negative = min((cpu.size(words, True, block_log2=log2), -log2) for log2 in log2s)
    found = written(device, words, True, log2s, 16)
    assert found.size == size
    assert found[0] == -negative
    np.testing.assert_array_equal(found, section_of(words, True, -negative))
    assert written(device, words[:1], True, [4, 12, 10], 16)[0] == 12  # the longest of equals


def test_no_words(device: Any) -> None:
    assert written(device, np.empty(0, np.uint32), True, [12], 16).size == 0
    assert read(device, np.empty(0, np.uint8), 100, 0, True).size == 0


@in_turn("at", [1, 15, 16, 600, 999])
def test_words_that_do_not_ascend_are_refused(device: Any, at: int) -> None:
    words = words_at(np.arange(1000) * 3)
    words[at] = words[at - 1] ^ 1
    with pytest.raises(ValueError, match="ascend"):
        golomb_rice.plan(device, device.place(words), True, [10, 4])


def test_wrong_arguments_are_refused(device: Any) -> None:
    words = device.place(words_at([3]))
    for log2 in (3, 15):
        with pytest.raises(ValueError, match="possible"):
            golomb_rice.plan(device, words, True, [log2])
    plan = golomb_rice.plan(device, words, True, [12])
    with pytest.raises(ValueError, match="takes"):
        golomb_rice.encode(device, plan, device.empty(plan.size + 1, np.uint8))


def both_read(device: Any, section: Any, n: int, k: int, signed: bool) -> None:
    """The CPU and the device refuse these bytes alike, or read the same."""
    try:
        used = cpu.section_bytes(section, k)
        expected = cpu.decode(section[:used], n, k, signed)
    except CorruptMessage:
        with pytest.raises(CorruptMessage):
            read(device, section, n, k, signed)
        return
    np.testing.assert_array_equal(read(device, section[:used], n, k, signed), expected)


@with_or_without_signs
@in_turn("block_log2", [4, 5, 12])
def test_corrupt_sections_are_read_as_on_the_cpu(device: Any, block_log2: int, signed: bool) -> None:
    rng = np.random.default_rng(block_log2)
    words = random_words(90, 0.02)
    section = section_of(words, signed, block_log2)
    n = int(words[-1] >> 1) + 1
    for trial in range(160):
        damaged = section.copy()
        where = rng.integers(0, damaged.size if trial % 2 else min(40, damaged.size), rng.integers(1, 4))
        damaged[where] ^= (1 << rng.integers(0, 8, where.size)).astype(np.uint8)
        both_read(device, damaged, n, 90, signed)
    for size in range(0, section.size, 7):
        both_read(device, section[:size], n, 90, signed)
    for other_n, other_k in ((n - 1, 90), (n, 89), (n, 91), (LAST_N, 90)):
        both_read(device, section, other_n, other_k, signed)


def test_random_bytes_are_read_as_on_the_cpu(device: Any) -> None:
    rng = np.random.default_rng(8)
    for trial in range(150):
        body = rng.integers(0, 256, rng.integers(0, 60)).astype(np.uint8)
        body[:1] = rng.integers(3, 16)
        both_read(device, body, LAST_N, 1 + trial % 20, bool(trial % 2))


def test_zero_bytes_behind_the_quotients_are_refused(device: Any) -> None:
    """A longer size in the table, and zeros at the block's end, from one window into the next as well."""
    words = random_words(3000, 0.3)
    section = section_of(words, True, 12)
    for more in (1, 2000, 40_000):
        longer = np.concatenate((section, np.zeros(more, np.uint8)))
        longer[5:7].view("<u2")[:] += np.uint16(more)
        both_read(device, longer, LAST_N, 3000, True)
        with pytest.raises(CorruptMessage, match="does not end"):
            read(device, longer, LAST_N, 3000, True)


def test_it_compiles_for_every_architecture(compiles: Callable[[str], None]) -> None:
    compiles("golomb_rice")
