"""A counter-based generator: a number follows from a key and a counter alone.

So it does not matter which device or thread asks, nor in which order, and a resumed run goes on alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ..lazy import np
from .array import NDArray, Numbers, Words

_WEYL, _FIRST, _SECOND = (number - 2**32 for number in (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35))  # as int32


def keys_of(seed: int, iteration: int, stream: int, names: Sequence[str]) -> NDArray[np.int32]:
    """Keys of some parameters, int32 [m, 2]: BLAKE2b of the seed, the iteration, a stream and a name."""
    head = b"".join(number.to_bytes(8, "little") for number in (seed, iteration, stream))
    digests = [blake2b(head + name.encode(), digest_size=8).digest() for name in names]
    return np.frombuffer(b"".join(digests), "<i4").reshape(-1, 2).astype(np.int32)


def bits_of(counters: Any, low: Any, high: Any) -> Any:
    """32 bits for each counter, by the halves of a key: MurmurHash3's finalizer, the second half xored in.

    All are int32, NumPy's or tensors, and are broadcast.
    """
    h = counters * _WEYL + low
    h = (h ^ ((h >> 16) & 0xFFFF)) * _FIRST ^ high
    h = (h ^ ((h >> 13) & 0x7FFFF)) * _SECOND
    return h ^ ((h >> 16) & 0xFFFF)


def positions_of(sizes: Numbers, counts: Numbers, keys: Words | None = None) -> Numbers:
    """Positions in parameters, ascending, `counts` of `sizes` elements of each: one in each of equal strata.

    Position i of a parameter is low + h mod (high - low), low = floor(i size / count), high = floor((i + 1)
    size / count). With keys h is bits_of(i, key, 0). Without it is bits_of(0, i, 0), MurmurHash3's finalizer
    of i: a sample that does not fall into step with the rows of a layer, and is always the same.
    """
    owners = np.repeat(np.arange(len(sizes)), counts)
    i = np.arange(owners.size) - (np.cumsum(counts) - counts)[owners]
    size, count = sizes[owners], counts[owners]
    low, high = i * size // count, (i + 1) * size // count
    low_key: Any = keys.view(np.int32)[owners] if keys is not None else i.astype(np.int32)
    counters = i.astype(np.int32) if keys is not None else np.int32(0)
    drawn = bits_of(counters, low_key, np.int32(0)).view(np.uint32)
    positions: Numbers = low + drawn.astype(np.int64) % (high - low)
    return positions
