"""Positions as words, bitmaps and chunked indices on the emulated device, against the CPU's codecs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import chunked, sparse
from taugrad.compressors.ops.cpu.ops import CPU
from taugrad.compressors.ops.cuda import positions, sparse_add
from taugrad.compressors.ops.cuda.faults import Faults
from taugrad.compressors.ops.returns import Returns

NO_FAULTS = CPU.faults(Returns(CPU))
CANARY = 0xA5
SIZES = (0, 1, 31, 32, 33, 1000, 16_384, 16_385, 70_001)
with_or_without_signs = in_turn("signed", [True, False])


def words_among(n: int, p: float) -> Any:
    rng = np.random.default_rng(n)
    chosen = np.flatnonzero(rng.random(n) < p)
    return (chosen << 1 | rng.integers(0, 2, chosen.size)).astype(np.uint32)


def filled(device: Any, size: int, offset: int, write: Callable[[Any], None]) -> Any:
    """What `write` fills `size` bytes at an offset with; the bytes around must stay."""
    fenced = device.place(np.full(size + 32, CANARY, np.uint8))
    write(fenced[offset : offset + size])
    found = device.fetch(fenced)
    assert (np.delete(found, slice(offset, offset + size)) == CANARY).all()
    return found[offset : offset + size]


def body_at(device: Any, section: Any, offset: int) -> Any:
    """The section at an offset of an array that has ones around it."""
    body = np.full(offset + section.size + 9, 0xFF, np.uint8)
    body[offset : offset + section.size] = section
    return device.place(body)[offset : offset + section.size]


def on_device(device: Any, read: Callable[[Faults], Any]) -> Any:
    faults = Faults(device)
    words = read(faults)
    faults.check()
    return device.fetch(words)


def alike(device: Any, on_cpu: Callable[[], Any], read: Callable[[Faults], Any]) -> None:
    """Both refuse, or read the same words."""
    try:
        expected = on_cpu()
    except CorruptMessage:
        with pytest.raises(CorruptMessage):
            on_device(device, read)
        return
    np.testing.assert_array_equal(on_device(device, read), expected)


@in_turn("n", SIZES)
def test_packed_words(device: Any, n: int) -> None:
    words = words_among(n, 0.3)
    offset = 16 + n % 4

    def write(out: Any) -> None:
        positions.write_packed32(device, device.place(words), out)

    section = filled(device, 4 * words.size, offset, write)
    assert section.tobytes() == words.astype("<u4").tobytes()
    body = body_at(device, section, offset)
    found = on_device(device, lambda faults: positions.read_packed32(device, body, n, words.size, faults))
    np.testing.assert_array_equal(found, words)


def test_packed_words_are_checked_as_on_the_cpu(device: Any) -> None:
    rng = np.random.default_rng(4)
    words = words_among(1000, 0.4)
    k, least = int(words.size), int(words[-1] >> 1) + 1
    damaged = [words]
    for _ in range(40):
        other = words.copy()
        other[rng.integers(0, k)] ^= np.uint32(1) << np.uint32(rng.integers(0, 12))
        damaged.append(other)
    for n in (least, least - 1):
        for each in damaged:
            section = each.astype("<u4").view(np.uint8)
            body = body_at(device, section, 16)
            alike(
                device,
                lambda section=section, n=n: CPU.read_packed32(section, n, k, NO_FAULTS),
                lambda faults, body=body, n=n: positions.read_packed32(device, body, n, k, faults),
            )


def bitmap_of(words: Any, n: int, signed: bool) -> Any:
    section = np.zeros(-(-n // 8) + (-(-words.size // 8) if signed else 0), np.uint8)
    CPU.write_bitmap(words, n, signed, section)
    return section


@with_or_without_signs
@in_turn("p", [0, 0.001, 0.4, 1])
@in_turn("n", [*SIZES, 32_767, 32_769])
def test_bitmaps(device: Any, n: int, p: float, signed: bool) -> None:
    words = words_among(n, p)
    offset, expected = 16 + n % 4, bitmap_of(words, n, signed)
    assert expected.size == positions.bitmap_bytes(n, words.size, signed)

    def write(out: Any) -> None:
        positions.write_bitmap(device, device.place(words), n, signed, out)

    np.testing.assert_array_equal(filled(device, expected.size, offset, write), expected)
    body = body_at(device, expected, offset)
    found = on_device(
        device, lambda faults: positions.read_bitmap(device, body, n, words.size, signed, faults)
    )
    np.testing.assert_array_equal(found, words if signed else words & ~np.uint32(1))


@with_or_without_signs
@in_turn("n", [3, 64, 1003, 16_390])
def test_bitmaps_are_checked_as_on_the_cpu(device: Any, n: int, signed: bool) -> None:
    rng = np.random.default_rng(n)
    words = words_among(n, 0.5)
    k = int(words.size)
    section = bitmap_of(words, n, signed)
    for trial in range(40):
        damaged = section.copy()
        where = rng.integers(0, section.size, 1 + trial % 2) if trial % 3 else [section.size - 1]
        damaged[where] ^= np.uint8(1 << rng.integers(0, 8))
        for count in (k, k + 1):
            if positions.bitmap_bytes(n, count, signed) != damaged.size:
                continue
            body = body_at(device, damaged, 16 + trial % 4)
            alike(
                device,
                lambda damaged=damaged, count=count: CPU.read_bitmap(damaged, n, count, signed, NO_FAULTS),
                lambda faults, body=body, count=count: positions.read_bitmap(
                    device, body, n, count, signed, faults
                ),
            )


def kept(n: int, chunk: int, keep: int, base: int) -> Any:
    """`keep` random positions of each chunk, ascending."""
    rng = np.random.default_rng(n + chunk)
    taken = [
        low + np.sort(rng.choice(min(chunk, n - low), min(keep, n - low), replace=False))
        for low in range(0, n, chunk)
    ]
    return ((np.concatenate([np.empty(0, np.int64), *taken]) + base) << 1).astype(np.uint32)


@in_turn(("chunk", "keep"), [(2, 1), (2, 2), (64, 1), (64, 7), (4096, 32), (4096, 4096), (65536, 1000)])
@in_turn("n", [0, 1, 33, 1000, 4097, 70_001])
def test_indices(device: Any, n: int, chunk: int, keep: int) -> None:
    base = 5 * (n % 2)
    words = kept(n, chunk, keep, base)
    expected = np.empty(chunked.index_bytes(n, chunk, keep), np.uint8)
    chunked.write_indices(words, n, chunk, keep, expected, base=base)
    offset = 16 + n % 3

    def write(out: Any) -> None:
        positions.write_indices(device, device.place(words), n, chunk, keep, out, base=base)

    np.testing.assert_array_equal(filled(device, expected.size, offset, write), expected)
    body = body_at(device, expected, offset)
    found = on_device(
        device, lambda faults: positions.read_indices(device, body, n, chunk, keep, faults, base=base)
    )
    np.testing.assert_array_equal(found, words)


@in_turn(("chunk", "keep"), [(8, 3), (64, 7), (4096, 700)])
def test_indices_are_checked_as_on_the_cpu(device: Any, chunk: int, keep: int) -> None:
    rng = np.random.default_rng(chunk)
    n = 2 * 3000 * chunk // keep + 5
    section = np.empty(chunked.index_bytes(n, chunk, keep), np.uint8)
    chunked.write_indices(kept(n, chunk, keep, 0), n, chunk, keep, section)
    # The last bytes: what lies beyond a chunk that is not whole, and padding. Then the seams of blocks.
    seam = 2048 * (chunk.bit_length() - 1) // 8
    places = [section.size - 1, section.size - 2, seam - 1, seam, seam + 1]
    for trial in range(60):
        damaged = section.copy()
        at = places[trial % 6] if trial % 6 < len(places) else rng.integers(0, section.size)
        damaged[at] ^= np.uint8(1 << rng.integers(0, 8))
        body = body_at(device, damaged, 16 + trial % 4)
        alike(
            device,
            lambda damaged=damaged: chunked.read_indices(damaged, n, chunk, keep),
            lambda faults, body=body: positions.read_indices(device, body, n, chunk, keep, faults),
        )


def test_wrong_lengths_are_refused(device: Any) -> None:
    faults, words, body = Faults(device), device.zeros(4, np.uint32), device.zeros(15, np.uint8)
    for read in (
        lambda: positions.read_packed32(device, body, 100, 4, faults),
        lambda: positions.read_bitmap(device, body, 100, 4, True, faults),
        lambda: positions.read_bitmap(device, body[:1], 3, 4, False, faults),
        lambda: positions.read_indices(device, body, 100, 64, 4, faults),
    ):
        with pytest.raises(CorruptMessage):
            read()
    for write in (
        lambda: positions.write_packed32(device, words, body),
        lambda: positions.write_bitmap(device, words, 100, True, body),
        lambda: positions.write_indices(device, words, 64, 64, 4, body),
        lambda: positions.write_indices(device, words, 100, 64, 4, body),
    ):
        with pytest.raises(ValueError, match=r"section takes|are not"):
            write()


# --- adding to a dense array ---------------------------------------------------------------------


@in_turn("n", SIZES)
def test_sums_are_those_of_the_cpu(device: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    words, tau = words_among(n, 0.3), np.float32(0.1)
    levels = rng.integers(1, 256, words.size).astype(np.uint8)
    values = (rng.standard_normal(words.size) * 10.0 ** rng.integers(-42, 30, words.size)).astype(np.float32)
    dense = (rng.standard_normal(n) * 10.0 ** rng.integers(-42, 3, n)).astype(np.float32)
    placed = device.place(words)
    for on_cpu, add in (
        (
            lambda to: sparse.add_taus(words, tau, to),
            lambda to: sparse_add.add_taus(device, placed, float(tau), to),
        ),
        (
            lambda to: sparse.add_levels(words, levels, tau, to),
            lambda to: sparse_add.add_levels(device, placed, device.place(levels), float(tau), to),
        ),
        (
            lambda to: sparse.add_values(words, values, to),
            lambda to: sparse_add.add_values(device, placed, device.place(values), to),
        ),
    ):
        expected, found = dense.copy(), device.place(dense)
        on_cpu(expected)
        add(found)
        assert device.fetch(found).tobytes() == expected.tobytes()


def test_values_must_be_as_many_as_words_and_positions_outside_are_passed_over(device: Any) -> None:
    words, dense = device.place(np.array([2, 8, 4_000_000_000], np.uint32)), device.zeros(4, np.float32)
    with pytest.raises(ValueError, match="needed"):
        sparse_add.add_levels(device, words, device.zeros(2, np.uint8), 1.0, dense)
    with pytest.raises(ValueError, match="needed"):
        sparse_add.add_values(device, words, device.zeros(3, np.float64), dense)
    sparse_add.add_taus(device, words, 1.0, dense)
    assert device.fetch(dense).tolist() == [0, 1, 0, 0]


@in_turn("source", ["positions", "sparse_add"])
def test_it_compiles_for_every_architecture(compiles: Callable[[str], None], source: str) -> None:
    compiles(source)
