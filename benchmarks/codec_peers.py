"""What codecs are measured against: zstd, constriction and NumPy."""

import constriction  # type: ignore[import-untyped]
import numpy as np
import zstandard
from case import Array, Coding
from numpy.typing import NDArray


def zstd_gaps(words: NDArray[np.uint32], level: int) -> Coding:
    """zstd on the gaps between positions, in as many whole bytes as the largest needs."""
    most = int(np.diff(words >> 1, prepend=np.uint32(0)).max())
    dtype = next(dtype for dtype in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(dtype).max)
    compress, decompress = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()

    def encode(threads: int) -> Array:
        gaps = np.diff(words >> 1, prepend=np.uint32(0)).astype(dtype)
        return np.frombuffer(compress.compress(gaps.data), np.uint8)

    def decode(section: Array, threads: int) -> Array:
        gaps = np.frombuffer(decompress.decompress(section.data), dtype)
        return np.cumsum(gaps, dtype=np.uint32) << 1

    return Coding(f"zstd -{level} gaps", encode, decode)


def zstd(symbols: Array) -> Coding:
    """zstd on symbols as they lie in memory."""
    compress, decompress = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    return Coding(
        "zstd -1",
        lambda threads: np.frombuffer(compress.compress(symbols.data), np.uint8),
        lambda section, threads: np.frombuffer(decompress.decompress(section.data), symbols.dtype),
    )


def ans(symbols: Array, bits: int) -> Coding:
    """constriction's ANS; the frequencies of the symbols are given to it, and not in its bytes."""
    wide = symbols.astype(np.int32)
    counts = np.bincount(symbols, minlength=1 << bits)
    model = constriction.stream.model.Categorical(counts / counts.sum(), perfect=False)

    def encode(threads: int) -> Array:
        coder = constriction.stream.stack.AnsCoder()
        coder.encode_reverse(wide, model)
        written: Array = coder.get_compressed()
        return written

    def decode(section: Array, threads: int) -> Array:
        read: Array = constriction.stream.stack.AnsCoder(section).decode(model, symbols.size)
        return read

    return Coding("constriction ANS", encode, decode, slow=True)


def packbits(words: NDArray[np.uint32], n: int) -> Coding:
    """NumPy's bitmap."""

    def encode(threads: int) -> Array:
        there = np.zeros(n, np.uint8)
        there[words >> 1] = 1
        return np.packbits(there, bitorder="little")

    def decode(section: Array, threads: int) -> Array:
        return (np.flatnonzero(np.unpackbits(section, count=n, bitorder="little")) << 1).astype(np.uint32)

    return Coding("NumPy packbits", encode, decode)


def nibbles(symbols: Array) -> Coding:
    """Two 4-bit symbols a byte, in NumPy; for an even number of them."""

    def encode(threads: int) -> Array:
        both: Array = symbols[0::2] | symbols[1::2] << 4
        return both

    def decode(section: Array, threads: int) -> Array:
        both = np.empty(2 * section.size, np.uint8)
        both[0::2], both[1::2] = section & 15, section >> 4
        return both

    return Coding("NumPy shifts", encode, decode)


def packed_lines(symbols: Array, bits: int) -> Coding:
    """16-bit symbols' lowest bits, in NumPy: a line of 16 bits for each symbol, cut off."""

    def encode(threads: int) -> Array:
        lines = np.unpackbits(symbols.view(np.uint8).reshape(-1, 2), axis=1, bitorder="little")
        return np.packbits(lines[:, :bits], bitorder="little")

    def decode(section: Array, threads: int) -> Array:
        lines = np.unpackbits(section, count=symbols.size * bits, bitorder="little").reshape(-1, bits)
        read: Array = np.packbits(lines, axis=1, bitorder="little").view("<u2").ravel()
        return read

    return Coding("NumPy packbits", encode, decode, slow=True)
