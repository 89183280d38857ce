"""Updates of every format, random and valid, and what says that two of them, or two readers, are the same."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import page_decoder
from hypothesis import strategies as st
from messages import segments_of
from numpy.typing import NDArray

from taugrad.compressors.ops.array import symbol_type
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.interface import Form, Offsets
from taugrad.compressors.ops.uniform import positions_of
from taugrad.compressors.wire import message
from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.message import HEADER_BYTES, NonFinite
from taugrad.compressors.wire.positions import DENSE, codec_by_code
from taugrad.compressors.wire.update import Chunks, Segments, Update


def random_values(form: Form, counts: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Any]:
    """What an update's fields for values may hold: floats, levels, bits of short floats, or symbols."""
    k = int(counts.sum())
    if form == "f32":
        magnitudes = (10 ** (6 * rng.random(k) - 3)).astype(np.float32)
        return {"values": np.where(rng.integers(0, 2, k) == 1, -magnitudes, magnitudes)}
    if form == "qgt":
        return {"values": rng.integers(1, 256, k).astype(np.uint8)}
    if form in ("fp16", "bf16"):
        return {"values": (rng.integers(0, 0x7C00, k) | rng.integers(0, 2, k) << 15).astype(np.uint16)}
    if not FORMS[form].quantized:
        return {}
    if k == 0:
        return {"bits": np.zeros(counts.size, np.int64)}
    return random_symbols(form, counts, rng)


def random_symbols(form: Form, counts: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Any]:
    """Symbols with tables; now and then one symbol alone, and blocks of any size."""
    bits = np.full(counts.size, 8 if form == "fp8" else int(rng.integers(1, 11)))
    if form == "linear" and rng.random() < 0.5:
        bits = rng.integers(1, 17, counts.size)
    bits[counts == 0] = 0
    block = int(rng.choice([0, rng.integers(0, counts.max())]))
    blocks = Offsets.of(counts, block).all_blocks
    most = np.repeat(rng.choice([1, 1 << 16]) % (1 << bits), counts)
    symbols = (rng.integers(0, 1 << 16, int(counts.sum())) % np.maximum(most, 1)).astype(
        symbol_type(int(bits.max()))
    )
    exponents = rng.integers(-126, 114, blocks).astype(np.int8)
    tables: tuple[Any, ...] = (exponents,)
    if form == "fp8":
        symbols[symbols & 0x7F == 0x7F] = 0  # no number
    elif form == "linear":
        lows, steps = rng.standard_normal((2, blocks)).astype(np.float32)
        tables = lows, np.where(steps < 0, np.float32(0), steps)
    else:
        shape = blocks << int(bits.max())
        means = rng.integers(0, 0x7800, shape) | rng.integers(0, 2, shape) << 15
        tables = exponents, means.astype(np.uint16)
    return {"values": symbols, "bits": bits, "block": block, "tables": tables}


def random_positions(
    segments: Segments, k: int, rng: np.random.Generator, chunks: Chunks | None
) -> NDArray[np.uint32]:
    """k positions, ascending; the same number from every chunk of some parameters where there are chunks."""
    if chunks is None:
        return np.sort(rng.choice(segments.n, k, replace=False)).astype(np.uint32)
    results = [np.empty(0, np.int64)]
    for first, size in zip(segments.firsts.tolist(), segments.sizes.tolist(), strict=True):
        for low in range(0, size if rng.random() < 0.8 else 0, chunks.chunk):
            length = min(chunks.chunk, size - low)
            results.append(first + low + np.sort(rng.choice(length, min(chunks.keep, length), replace=False)))
    return np.concatenate(results).astype(np.uint32)


def cut(n: int, rng: np.random.Generator) -> Segments:
    """n elements as one to four parameters."""
    most = int(rng.integers(0, 4))
    edges = np.unique(np.concatenate([[0, n], rng.integers(0, n + 1, most)]))
    return segments_of(np.diff(edges).tolist())


def random_update(
    codec: str, form: Form, n: int, k: int, rng: np.random.Generator, segments: Segments | None = None
) -> Update:
    """A valid update of the kind that a codec is for: k of n elements; or whole parameters, chunks, keys."""
    segments = cut(n, rng) if segments is None else segments
    if codec == "every":
        counts = np.where(rng.random(len(segments)) < 0.8, segments.sizes, 0)
        return Update(form, segments, None, counts, **random_values(form, counts, rng))
    chunks = None
    if codec == "drawn":
        keys = rng.integers(0, 1 << 32, len(segments), np.uint32)
        counts = np.minimum(segments.sizes, rng.integers(0, k + 1, len(segments)))
        positions = np.repeat(segments.firsts, counts) + positions_of(segments.sizes, counts, keys)
        words = positions.astype(np.uint32) << np.uint32(1)
        return Update(form, segments, words, counts, keys=keys, **random_values(form, counts, rng))
    if codec == "chunked":
        chunk = 1 << int(rng.integers(1, 17))
        chunks = Chunks(chunk, int(rng.integers(1, chunk + 1)))
    words = random_positions(segments, k, rng, chunks) << np.uint32(1)
    counts = segments.counts_of(words)
    taus = None
    if FORMS[form].has_tau:
        words |= rng.integers(0, 2, words.size).astype(np.uint32)
        some = rng.choice(np.array([2.0**-126, 1e-30, 1e-3, 0.25, 1.0, 1e30], np.float32), len(segments))
        taus = some if rng.random() < 0.5 else np.full(len(segments), some[0])
    return Update(form, segments, words, counts, taus=taus, chunks=chunks, **random_values(form, counts, rng))


def draw_update(data: st.DataObject, codec: str, form: Form) -> Update:
    """Draws any valid update of a form, for a codec, from hypothesis's data."""
    n = data.draw(st.integers(1, 300), label="n")
    k = data.draw(st.one_of(st.just(0), st.just(n), st.integers(0, n)), label="k")
    seed = data.draw(st.integers(0, 2**32 - 1), label="seed")
    return random_update(codec, form, n, k, np.random.default_rng(seed))


def assert_same_update(actual: Update, expected: Update) -> None:
    """Fails where two updates differ in a field, a type or a bit; chunks are a codec's affair."""
    assert actual.form == expected.form
    assert actual.segments is expected.segments
    assert actual.counts.tolist() == expected.counts.tolist()
    block = expected.block if expected.block < expected.counts.max(initial=0) else 0
    assert actual.block == block
    assert actual.bits.tolist() == expected.bits.tolist()
    assert (actual.words is None) == (expected.words is None)
    arrays = zip(
        (actual.words, actual.taus, actual.values, *actual.tables),
        (expected.words, expected.taus, expected.values, *expected.tables),
        strict=True,
    )
    for there, due in arrays:
        assert (there is None) == (due is None)
        if there is not None and due is not None:
            assert there.size == due.size
            assert not due.size or there.dtype == due.dtype
            assert there.tobytes() == due.tobytes()


def check_by_the_page(data: bytes, sizes: tuple[int, ...], ours: Update | NonFinite | None) -> None:
    """Fails unless both readers refuse a message, or find the same in it."""
    try:
        theirs = page_decoder.decode(data, [*sizes])
    except page_decoder.Invalid:
        theirs = None
    assert (ours is None) == (theirs is None), f"the page finds {theirs}, ours {ours}"
    if ours is None or theirs is None:
        return
    if isinstance(ours, NonFinite):
        assert theirs == ours.ordinal
        return
    positions, amounts = theirs
    elements = [element for where, _ in ours.places() for element in np.arange(sum(sizes))[where].tolist()]
    assert positions == elements
    # Amounts are added, so that the sign of a zero is lost.
    due, actual = np.array(amounts, np.float32), ours.amounts(CPU)
    assert (due + np.float32(0)).tobytes() == (actual + np.float32(0)).tobytes()


def read(data: NDArray[np.uint8], sizes: Sequence[int]) -> Update | NonFinite:
    """What a message says about parameters that fill a bucket."""
    if message.is_refusal(data):
        return message.read_nonfinite(data, sum(sizes))
    return message.read(data, segments_of(sizes))


def check_rewritten(update: Update, data: bytes | bytearray) -> None:
    """Fails unless the update, written by the same codec, is read as the same update."""
    codec = "auto" if data[4] == DENSE else codec_by_code(data[4]).name
    if codec == "chunked":
        update.chunks = Chunks(*struct.unpack_from("<II", data, HEADER_BYTES))
    if codec == "drawn":
        m = len(update.segments)
        update.keys = np.frombuffer(data, "<u4", m, HEADER_BYTES + 4 * m)
    again = message.read(message.write_all([(update, codec)], "auto"), update.segments)
    assert (again.form, again.counts.tolist()) == (update.form, update.counts.tolist())
    assert again.words is None or np.array_equal(again.words, update.words)
    assert again.amounts(CPU).tobytes() == update.amounts(CPU).tobytes()
