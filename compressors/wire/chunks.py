"""The packing of indices within chunks: log2(chunk) bits each (SparseLoCo, arXiv 2508.15706)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..method.base import check_chunks
from ..ops.cpu.bitpack import pack, packed_bytes, symbol_type, unpack


def _bits(chunk: int) -> int:
    return chunk.bit_length() - 1


def index_count(n: Any, chunk: int, keep: int) -> Any:
    """How many of n elements (a number, or an array of them) chunks send.

    Raises:
        ValueError: chunk or keep is out of its range.
    """
    check_chunks(chunk, keep)
    found = n // chunk * keep + np.minimum(n % chunk, keep)
    return int(found) if isinstance(n, int) else found


def index_bytes(k: int, chunk: int) -> int:
    """Bytes of k packed indices."""
    return int(packed_bytes(k, _bits(chunk)))


def write_indices(
    words: NDArray[np.uint32],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int64],
    chunk: int,
    out: NDArray[np.uint8],
) -> None:
    """Packs the positions of what chunks sent.

    log2(chunk) bits an index within its chunk, lowest bit first; chunks in order, indices ascending;
    the last byte is filled up with zeros.

    Args:
        words: uint32 [k], those of all parameters.
        firsts: int64 [m], the first position of each parameter.
        counts: int64 [m], how many words are of each.
        chunk: elements of a chunk.
        out: uint8 [index_bytes], every byte of it written.
    """
    bits = _bits(chunk)
    indices = (words >> np.uint32(1)).astype(np.int64) - np.repeat(firsts, counts) & chunk - 1
    pack(indices.astype(symbol_type(bits)), bits, out)


def read_indices(
    body: NDArray[np.uint8],
    firsts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    chunk: int,
    keep: int,
) -> NDArray[np.uint32]:
    """Reads what `write_indices` wrote.

    Args:
        body: uint8 [index_bytes], untrusted.
        firsts: int64 [m], the first position of each parameter of which anything was sent.
        sizes: int64 [m], their elements.
        chunk: elements of a chunk.
        keep: how many are sent of each chunk.

    Returns:
        uint32 [k], position << 1, ascending; the signs stand elsewhere.

    Raises:
        CorruptMessage: an index does not follow the one before it or lies beyond its chunk, or the padding is
            not zero.
    """
    chunks = -(-sizes // chunk)
    ordinals = np.arange(chunks.sum()) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    lengths = np.minimum(chunk, np.repeat(sizes, chunks) - ordinals * chunk)
    sent = np.minimum(keep, lengths)
    indices = unpack(body, _bits(chunk), int(sent.sum()))
    positions = np.repeat(np.repeat(firsts, chunks) + ordinals * chunk, sent) + indices
    if (indices >= np.repeat(lengths, sent)).any() or (np.diff(positions) <= 0).any():
        raise CorruptMessage("positions: packed indices do not ascend within their chunks")
    return positions.astype(np.uint32) << np.uint32(1)
