"""Codecs: positions and symbols into bytes and back. Encoding includes finding out the size.

A codec's input has just been written by a pass, so runs are warm.
"""

from collections.abc import Iterator
from functools import cache, partial

import numpy as np
from arena import Arena
from case import Array, Case, Coding, Goal, Peer, require_same
from codec_peers import ans, nibbles, packbits, packed_lines, zstd, zstd_gaps
from numpy.typing import NDArray

from taugrad.compressors.ops.cpu import bitpack, golomb_rice, huffman
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.readback import Readback
from taugrad.compressors.ops.segments import Segments
from taugrad.compressors.quantizers.base import Given, Work
from taugrad.compressors.quantizers.linear import LinearLink
from taugrad.compressors.wire.codec import Head
from taugrad.compressors.wire.positions import codec_by_name
from taugrad.compressors.wire.update import Chunks, Update

DENSITIES = (0.1, 0.01, 0.001, 0.0001)
LEAST_FOR_RATE = 50_000
"""Calling a kernel takes microseconds: fewer items say nothing about its rate."""
CHUNKS = Chunks(4096, 41)


def cases(
    items: Array,
    coding: Coding,
    peers: tuple[Coding, ...] = (),
    bound: float | None = None,
    goals: tuple[Goal, ...] = (),
) -> Iterator[Case]:
    """A row for each direction; `goals` of sizes are the encoder's alone."""
    written = coding.encode(1)
    require_same(coding.name, np.array_equal(coding.decode(written, 1), items))
    rates = tuple(goal for goal in goals if goal.of == "rate" and items.size >= LEAST_FOR_RATE)
    common = partial(Case, items=items.size, threads=coding.threads, warm=True)
    yield common(
        f"{coding.name}, encode",
        run=coding.encode,
        size=written.size,
        bound=bound,
        peers=tuple(_peer(peer, items, encodes=True) for peer in peers),
        goals=rates + tuple(goal for goal in goals if goal.of == "over"),
    )
    yield common(
        f"{coding.name}, decode",
        run=partial(coding.decode, written),
        peers=tuple(_peer(peer, items, encodes=False) for peer in peers),
        goals=rates,
    )


def _peer(coding: Coding, items: Array, *, encodes: bool) -> Peer:
    written = cache(partial(coding.encode, 1))

    def check() -> int:
        require_same(coding.name, np.array_equal(coding.decode(written(), 1), items))
        return written().nbytes

    run = partial(coding.encode, 1) if encodes else lambda: coding.decode(written(), 1)
    return Peer(coding.name, run, check, coding.slow)


def position_cases(arena: Arena) -> Iterator[Case]:
    """Positions alone, without signs, as wgt and topk send them."""
    for density in DENSITIES:
        positions = np.flatnonzero(arena.magnitude_N >= arena.tau(density))
        words = (positions << 1).astype(np.uint32)
        n, k = arena.elements, words.size
        name, bound = f"{100 * density:g}%", n * entropy(np.array([k, n - k]))
        golomb, goals = rice(f"golomb_rice {name}", words, n), (Goal("rate", 300), Goal("over", 1.5))
        yield from cases(words, golomb, (zstd_gaps(words, 1), zstd_gaps(words, 3)), bound, goals)
        update = Update("f32", Segments.side_by_side([n]), words, np.array([k]))
        if density >= 0.01:
            yield from cases(
                words, of_codec("bitmap", f"bitmap {name}", update), (packbits(words, n),), bound
            )
        if density == 0.01:
            yield from cases(words, of_codec("packed32", f"packed32 {name}", update), (), bound)
    words = chunked_words(arena.elements)
    segments = Segments.side_by_side([arena.elements])
    update = Update("f32", segments, words, np.array([words.size]), chunks=CHUNKS)
    yield from cases(words, of_codec("chunked", f"chunked {CHUNKS.chunk}/{CHUNKS.keep}", update))


def symbol_cases(arena: Arena) -> Iterator[Case]:
    """Symbols of a whole gradient, of bins of equal width."""
    for bits in (8, 10):
        symbols = symbols_of(arena, bits)
        bound = symbols.size * entropy(np.bincount(symbols))
        goals = (Goal("rate", 1000), Goal("over", 1))
        yield from cases(
            symbols, huffman_coding(symbols, bits), (zstd(symbols), ans(symbols, bits)), bound, goals
        )
    four, ten = symbols_of(arena, 4), symbols_of(arena, 10)
    yield from cases(four, packing(four, 4), (nibbles(four),))
    yield from cases(ten, packing(ten, 10), (packed_lines(ten, 10),))


def entropy(counts: Array) -> float:
    """Bits an item of the best code for independent items of these frequencies."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def chunked_words(n: int) -> NDArray[np.uint32]:
    """Words of `CHUNKS.keep` random positions of every chunk."""
    rng = np.random.default_rng(1)
    chosen = []
    for start in range(0, n, CHUNKS.chunk):
        length = min(CHUNKS.chunk, n - start)
        chosen.append(start + np.sort(rng.permutation(length)[: CHUNKS.keep]))
    return (np.concatenate(chosen) << 1).astype(np.uint32)


def symbols_of(arena: Arena, bits: int) -> Array:
    """The gradient's linear symbols, the whole of it one block."""
    readback = Readback(CPU)
    made = LinearLink(bits=bits, block=0).apply([Given(None, arena.gradient)], Work(CPU, readback, readback))
    symbols: Array = made.values
    return symbols


def of_codec(codec_name: str, name: str, update: Update) -> Coding:
    """The positions of a codec."""
    codec = codec_by_name(codec_name)
    head = Head(update.form, update.segments, update.k)

    def encode(threads: int) -> Array:
        section = codec.measure(update, threads)
        assert section is not None
        written = np.zeros(section.size, np.uint8)
        section.write(written)
        return written

    def decode(section: Array, threads: int) -> Array:
        words: Array = codec.read(section, head, threads)[0]
        return words

    return Coding(name, encode, decode, (1,))


def rice(name: str, words: NDArray[np.uint32], n: int) -> Coding:
    """Golomb-Rice."""

    def encode(threads: int) -> Array:
        planned = golomb_rice.plan(words, False, threads)
        section = np.empty(planned.size, np.uint8)
        golomb_rice.write(planned, section, threads)
        return section

    return Coding(
        name, encode, lambda section, threads: golomb_rice.read(section, n, words.size, False, threads)[0]
    )


def huffman_coding(symbols: Array, bits: int) -> Coding:
    """Huffman, its code found anew."""

    def encode(threads: int) -> Array:
        code = huffman.Code.of(huffman.histogram(symbols, bits, threads))
        planned = huffman.plan(symbols, code, threads)
        section = np.empty(planned.size, np.uint8)
        huffman.encode(planned, section, threads)
        return section

    def decode(section: Array, threads: int) -> Array:
        found: Array = huffman.decode(section, bits, symbols.size, threads)[0]
        return found

    return Coding(f"huffman {bits} bit", encode, decode)


def packing(symbols: Array, bits: int) -> Coding:
    """Bits side by side."""

    def encode(threads: int) -> Array:
        section = np.empty(bitpack.packed_bytes(symbols.size, bits), np.uint8)
        bitpack.pack(symbols, bits, section, threads)
        return section

    return Coding(
        f"bit packing, {bits} bit",
        encode,
        lambda section, threads: bitpack.unpack(section, bits, symbols.size, threads),
    )
