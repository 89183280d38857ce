"""Positions on a device as words, as a bitmap and as indices in chunks.

The bytes are those of the codecs `packed32`, `bitmap` and `chunked`. Nothing here waits.

Arguments are those of `Wire`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

import numpy as np

from ...errors import CorruptMessage
from ..cpu.chunked import index_bytes, index_count
from ..faults import Faults
from .copying import copy_bytes
from .runtime import Runtime

_THREADS, _EIGHT = 256, 8
_WRITTEN_TILE, _READ_TILE = 2**15, 2**14
"""Bits of a bitmap that a block of threads writes or reads, as in positions.cu."""
_PACKED_TILE = 2048
"""Indices of a block of threads, as in packing.cuh."""


def _blocks(elements: int, tile: int) -> int:
    return -(-elements // tile)


def _expect(out: Any, size: int) -> None:
    if out.size != size:
        raise ValueError(f"{out.size} bytes are given, the section takes {size}")


def _need(body: Any, size: int) -> None:
    if body.size != size:
        raise CorruptMessage(f"the section is {body.size} bytes long instead of {size}")


def write_packed32(runtime: Runtime, words: Any, out: Any) -> None:
    """Writes words as they are.

    Raises:
        ValueError: out is of another length.
    """
    _expect(out, 4 * int(words.size))
    copy_bytes(runtime, words, out)


def read_packed32(runtime: Runtime, body: Any, n: int, k: int, faults: Faults) -> Any:
    """Reads what `write_packed32` wrote.

    Returns:
        uint32 [k].

    Raises:
        CorruptMessage: body is not 4k bytes long.
    """
    _need(body, 4 * k)
    words = runtime.empty(k, np.uint32)
    arguments = (body, n, k, words, faults.array)
    runtime.launch("positions", "read_words", _blocks(k, _THREADS), _THREADS, *arguments)
    return words


def bitmap_bytes(n: int, k: int, signed: bool) -> int:
    """Bytes of a bitmap of n elements and, if they are written, of the k signs."""
    return (n + 7) // 8 + ((k + 7) // 8 if signed else 0)


def write_bitmap(runtime: Runtime, words: Any, n: int, signed: bool, out: Any) -> None:
    """Writes a bit an element, then, if `signed`, a sign a word.

    Raises:
        ValueError: out is of another length.
    """
    k, split = int(words.size), bitmap_bytes(n, 0, False)
    _expect(out, bitmap_bytes(n, k, signed))
    bits = (words, k, n, out[:split])
    runtime.launch("positions", "write_bitmap", _blocks(n, _WRITTEN_TILE), _THREADS, *bits)
    if signed:
        blocks = _blocks(k, _THREADS * _EIGHT)
        runtime.launch("positions", "write_signs", blocks, _THREADS, words, k, out[split:])


def read_bitmap(runtime: Runtime, body: Any, n: int, k: int, signed: bool, faults: Faults) -> Any:
    """Reads what `write_bitmap` wrote.

    Returns:
        uint32 [k], position << 1 | sign, sign 0 where none was written.

    Raises:
        CorruptMessage: body has another length, or elements are sent where there are none.
    """
    _need(body, bitmap_bytes(n, k, signed))
    if k > n:
        raise CorruptMessage(f"a bitmap of {n} elements holds no {k}")
    words, tiles = runtime.empty(k, np.uint32), _blocks(n, _READ_TILE)
    states, signs = runtime.zeros(tiles + 1, np.uint64), body[bitmap_bytes(n, 0, False) :]
    arguments = (body, signs, n, k, int(signed), words, states, faults.array)
    runtime.launch("positions", "read_bitmap", tiles, _THREADS, *arguments)
    return words


def _index_bits(chunk: int) -> int:
    return chunk.bit_length() - 1


def write_indices(
    runtime: Runtime, words: Any, n: int, chunk: int, keep: int, out: Any, *, base: int = 0
) -> None:
    """Packs positions as indices within their chunks; see `ops.cpu.chunked.write_indices`.

    Raises:
        ValueError: a length is not what n, chunk and keep make it, or these are out of their range.
    """
    k = int(words.size)
    if k != index_count(n, chunk, keep):
        raise ValueError(f"{k} words are not {keep} of every {chunk} of {n} elements")
    _expect(out, index_bytes(n, chunk, keep))
    arguments = (words, k, base, _index_bits(chunk), out)
    runtime.launch("positions", "write_indices", _blocks(k, _PACKED_TILE), _THREADS, *arguments)


def read_indices(
    runtime: Runtime, body: Any, n: int, chunk: int, keep: int, faults: Faults, *, base: int = 0
) -> Any:
    """Reads what `write_indices` wrote.

    Returns:
        uint32 [index_count(n, chunk, keep)], position << 1.

    Raises:
        CorruptMessage: body has another length.
        ValueError: chunk or keep is out of its range.
    """
    _need(body, index_bytes(n, chunk, keep))
    k = index_count(n, chunk, keep)
    words = runtime.empty(k, np.uint32)
    arguments = (body, n, k, keep, _index_bits(chunk), base, words, faults.array)
    runtime.launch("positions", "read_indices", _blocks(k, _PACKED_TILE), _THREADS, *arguments)
    return words
