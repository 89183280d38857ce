"""Messages of a whole bucket in a few calls: the same bytes, and the same updates, as one by one."""

import struct
import zlib
from collections.abc import Callable

import messages
import numpy as np
import pytest
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.bucket.adding import add_all, sum_all
from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.bucket.incoming import ColumnsReceived, sent_in
from taugrad.compressors.bucket.layout import Place, Unit
from taugrad.compressors.config import CompressedMethod, read_config
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu.bitpack import symbol_type
from taugrad.compressors.ops.cpu.ops import CPU
from taugrad.compressors.ops.cpu.wire import find_messages
from taugrad.compressors.ops.offsets import offsets_of
from taugrad.compressors.wire import message
from taugrad.compressors.wire.codecs.chunked import Chunked
from taugrad.compressors.wire.codecs.raw import Raw
from taugrad.compressors.wire.columns.reading import read
from taugrad.compressors.wire.columns.updates import UpdateColumns
from taugrad.compressors.wire.columns.values import SharedValues, beside
from taugrad.compressors.wire.columns.words import Words
from taugrad.compressors.wire.columns.writing import plan
from taugrad.compressors.wire.forms import FORMS, Form
from taugrad.compressors.wire.message import HEADER_BYTES
from taugrad.compressors.wire.update import NO_TAU, Chunks, Update

DENSE: list[Form] = ["linear", "quantile", "fp8", "fp16", "bf16"]
SPARSE: list[Form] = ["bgt", "strom", "qgt", "f32", *DENSE]
CRC_AT = 28
Same = Callable[[Update, Update], None]


def shared_values(form: Form, counts: list[int], rng: np.random.Generator) -> SharedValues:
    """Values as a rule leaves them: in shared arrays, with room between parameters."""
    bits = 8 if form == "fp8" else int(rng.choice([1, 3, 4, 8]))
    block = int(rng.choice([0, 1, 100, 2048]))
    if form in ("fp16", "bf16"):
        bits, block = 16, 0
    offsets = offsets_of(tuple(counts), block)
    symbols = rng.integers(0, rng.choice([2, 1 << bits]), offsets.all_symbols).astype(symbol_type(bits))
    if form == "fp8":
        symbols[symbols & 0x7F == 0x7F] = 1  # no number
    if form in ("fp16", "bf16"):
        symbols &= 0x3FFF
    exponents = rng.integers(-126, 114, offsets.all_blocks).astype(np.int8)
    lows, steps = rng.standard_normal((2, offsets.all_blocks)).astype(np.float32)
    means = rng.integers(0, 0x7800, offsets.all_blocks << (bits if form == "quantile" else 0)).astype(
        np.uint16
    )
    tables = {"linear": (lows, np.abs(steps)), "quantile": (exponents, means), "fp8": (exponents,)}.get(
        form, ()
    )
    return SharedValues(form, bits, block, offsets, symbols, tables)


def dense(form: Form, sizes: list[int], rng: np.random.Generator) -> UpdateColumns:
    return UpdateColumns(form, np.array(sizes), None, shared_values(form, sizes, rng))


def sparse(
    form: Form, sizes: list[int], share: float, rng: np.random.Generator, chunks: Chunks | None = None
) -> UpdateColumns:
    """Some elements of each parameter; where tau is what a value means, of one unit at ascending taus."""
    apart = FORMS[form].sign_apart
    ns = [max(sizes)] * len(sizes) if apart else sizes
    least = 0 if apart else 1
    if chunks is None:
        positions = [np.sort(rng.choice(n, max(least, int(share * n)), replace=False)) for n in ns]
    else:
        every = [range(low, min(low + chunks.chunk, n)) for n in ns for low in range(0, n, chunks.chunk)]
        chosen = [np.sort(rng.choice(each, min(chunks.keep, len(each)), replace=False)) for each in every]
        per = [-(-n // chunks.chunk) for n in ns]
        ends = np.cumsum(per)
        positions = [np.concatenate(chosen[end - count : end]) for count, end in zip(per, ends, strict=True)]
    counts = [each.size for each in positions]
    array = np.concatenate(positions).astype(np.uint32) << np.uint32(1)
    if apart:
        array |= rng.integers(0, 2, array.size).astype(np.uint32)
    words = Words(array, np.cumsum(counts))
    taus = np.sort(rng.uniform(0.1, 1, len(ns))).astype(np.float32) if apart else None
    values = None
    if form == "qgt":
        values = beside(form, words, rng.integers(1, rng.choice([3, 256]), array.size).astype(np.uint8))
    elif form == "f32":
        values = beside(form, words, rng.standard_normal(array.size).astype(np.float32))
    elif not apart:
        values = shared_values(form, counts, rng)
    return UpdateColumns(form, np.array(ns), words, values, taus, chunks)


def written_at_once(updates: UpdateColumns, codec: str, symbols: str, threads: int = 1) -> np.ndarray:
    planned = plan(updates, codec, symbols, threads)
    assert planned is not None
    payload: np.ndarray = message.write_planned([planned], CPU)
    return payload


def columns_in(form: Form, n: np.ndarray, payload: np.ndarray, threads: int = 1) -> UpdateColumns | None:
    found = read(form, n, payload, threads)
    if found is None:
        return None
    columns, end = found
    assert end == payload.size
    return columns


def check(updates: UpdateColumns, codec: str, symbols: str, threads: int, same: Same) -> None:
    payload = written_at_once(updates, codec, symbols, threads)
    one_by_one = messages.write_all(list(updates), [codec] * len(updates), symbols)
    assert payload.tobytes() == b"".join(each.tobytes() for each in one_by_one)
    found = columns_in(updates.form, updates.n, payload, threads)
    if found is not None:
        for here, there in zip(found, message.read_all(one_by_one, updates.n.tolist()), strict=True):
            assert isinstance(there, Update)
            same(here, there)
    # What is written out, and a mixture of what is regular in chunks and what is not, is read one by one.
    codes = {int(each[4]) for each in one_by_one}
    assert (found is None) == (Raw.code in codes or len({code == Chunked.code for code in codes}) == 2)


SIZES = st.lists(st.sampled_from([1, 2, 7, 64, 1000, 2049, 9000]), min_size=1, max_size=8)
SYMBOLS = st.sampled_from(["auto", "raw", "huffman"])


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(DENSE), SIZES, SYMBOLS, st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_dense_messages(
    assert_same_update: Same, form: Form, sizes: list[int], symbols: str, threads: int, seed: int
) -> None:
    check(dense(form, sizes, np.random.default_rng(seed)), "auto", symbols, threads, assert_same_update)


@settings(max_examples=150, deadline=None)
@given(
    form=st.sampled_from(SPARSE),
    sizes=SIZES,
    share=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    codec=st.sampled_from(["auto", "auto", "packed32", "bitmap", "golomb_rice"]),
    symbols=SYMBOLS,
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_sparse_messages(
    assert_same_update: Same,
    form: Form,
    sizes: list[int],
    share: float,
    codec: str,
    symbols: str,
    threads: int,
    seed: int,
) -> None:
    updates = sparse(form, sizes, share, np.random.default_rng(seed))
    check(updates, codec, symbols, threads, assert_same_update)


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from([form for form in SPARSE if not FORMS[form].sign_apart]),
    sizes=SIZES,
    keep=st.sampled_from([1, 8, 60]),
    codec=st.sampled_from(["auto", "chunked"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_messages_in_chunks(
    assert_same_update: Same, form: Form, sizes: list[int], keep: int, codec: str, seed: int
) -> None:
    updates = sparse(form, sizes, 0, np.random.default_rng(seed), Chunks(64, keep))
    check(updates, codec, "auto", 1, assert_same_update)


@settings(max_examples=80, deadline=None)
@given(
    form=st.sampled_from(SPARSE),
    every=st.booleans(),
    sizes=SIZES,
    workers=st.integers(1, 3),
    divisor=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums(form: Form, every: bool, sizes: list[int], workers: int, divisor: int, seed: int) -> None:
    rng, received = np.random.default_rng(seed), []
    ends = np.cumsum(sizes)
    for _ in range(workers):
        updates = dense(form, sizes, rng) if every and form in DENSE else sparse(form, sizes, 0.1, rng)
        starts = np.zeros(len(sizes), np.int64) if FORMS[form].sign_apart else ends - sizes
        found = columns_in(form, updates.n, written_at_once(updates, "auto", "auto"))
        assert found is not None
        units = [
            Unit(n, start, (Place(number, start, n),))
            for number, (n, start) in enumerate(zip(found.n.tolist(), starts.tolist(), strict=True))
        ]
        received.append(ColumnsReceived(found, units, starts))
    total, expected = torch.full((2, int(ends[-1])), 7.0)
    sum_all(received, divisor, total, CPU)
    sum_all([list(each) for each in received], divisor, expected, CPU)
    assert total.numpy().tobytes() == expected.numpy().tobytes()
    add_all(received[0], total, CPU)
    add_all(list(received[0]), expected, CPU)
    assert total.numpy().tobytes() == expected.numpy().tobytes()


NAMED = "exempt={'names': ['bias*']}"
EXEMPT = [
    f"linear(bits=8, {NAMED})",
    f"fp16({NAMED})",
    f"strom(density(0.05), {NAMED})",
    f"qgt(density(0.05), {NAMED})",
    f"chunked_topk(keep=4, chunk=64, {NAMED})",
    f"topk(0.05, {NAMED}) | linear(4)",
]


@in_turn("line", EXEMPT)
def test_parameters_that_are_sent_whole_come_behind(line: str) -> None:
    config = read_config(line)
    assert isinstance(config, CompressedMethod)
    names = ["bias.0", "a", "b", "bias.1", "c", "d", "e"]
    sizes = [7, 900, 40, 5, 3000, 11, 64]
    worker = FeedbackCompressor(config, names, [torch.zeros(n) for n in sizes], threads=1)
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(n, generator=generator) for n in sizes]
    payload = worker.compress(gradients, 0).payload
    received = worker.read(payload)
    assert isinstance(received, ColumnsReceived)
    each = list(received)
    assert len(each) == len(received) == len(received.updates) + 1
    assert received[-1][0].form == "f32"
    sent = sum(update.k for update, _ in each), sum(update.paper_bits for update, _ in each)
    assert sent_in(received) == sent_in(each) == sent
    total, expected = torch.full((2, sum(sizes)), 7.0)
    worker.compressor.total([received, received], 2, total)
    worker.compressor.total([each, each], 2, expected)
    assert total.numpy().tobytes() == expected.numpy().tobytes()
    assert total[:7].tolist() == gradients[0].tolist()
    payload[-1] ^= 1  # of the last message
    with pytest.raises(CorruptMessage, match="checksum"):
        worker.read(payload)


@in_turn("form", ["strom", "qgt"])
def test_where_everything_is_sent_the_dense_array_is_shortest(form: Form, assert_same_update: Same) -> None:
    updates = sparse(form, [500, 500], 1.0, np.random.default_rng(0))
    payload = written_at_once(updates, "raw", "auto")
    one_by_one = messages.write_all(list(updates), ["raw"] * 2, "auto")
    assert payload.tobytes() == b"".join(each.tobytes() for each in one_by_one)
    assert columns_in(form, updates.n, payload) is None  # left to be read one by one


@in_turn("symbols", ["raw", "huffman"])
@in_turn("threads", [1, 2])
def test_symbols_of_too_many_bits_are_refused(symbols: str, threads: int) -> None:
    offsets = offsets_of((64,) * 5, 0)
    values = np.ones(offsets.all_symbols, np.uint8)
    values[offsets.begins[3] + 2] = 8
    tables = np.zeros(offsets.all_blocks, np.float32), np.ones(offsets.all_blocks, np.float32)
    updates = UpdateColumns(
        "linear", offsets.sizes, None, SharedValues("linear", 3, 0, offsets, values, tables)
    )
    with pytest.raises(ValueError, match="more than 3 bits"):
        written_at_once(updates, "auto", symbols, threads)


@in_turn("threads", [1, 2])
@in_turn("size", [64, 1 << 17])
def test_symbols_that_change_before_they_are_written_are_noticed(threads: int, size: int) -> None:
    updates = dense("fp8", [size] * 4, np.random.default_rng(1))
    planned = plan(updates, "auto", "huffman", threads)
    assert planned is not None
    assert updates.values is not None
    array = updates.values.symbols
    assert isinstance(array, np.ndarray)
    array[:] = np.where(np.arange(array.size) % 3, 0x33, 0x44)
    with pytest.raises(ValueError, match="not the symbols that were planned"):
        message.write_planned([planned], CPU)


def test_float32_sent_whole_is_read_one_by_one() -> None:
    whole = [Update("f32", n, NO_TAU, None, np.ones(n, np.float32)) for n in (5, 9, 2, 7)]
    payload = np.concatenate(messages.write_all(whole, ["every"] * 4))
    assert columns_in("f32", np.array([5, 9, 2, 7]), payload) is None


def test_more_elements_than_a_message_holds_are_left_to_one_by_one() -> None:
    updates = sparse("strom", [50] * 4, 0.2, np.random.default_rng(0))
    assert plan(updates, "auto", "auto", 1) is not None
    updates.n[2] = message.LARGEST_N + 1
    assert plan(updates, "auto", "auto", 1) is None


@pytest.mark.parametrize("symbols", ["raw", "huffman"])
@in_turn("form", ["linear", "quantile", "fp8", "fp16"])
def test_threads_share_large_parameters(form: Form, symbols: str, assert_same_update: Same) -> None:
    updates = dense(form, [5, 200_000, 70_001, 3], np.random.default_rng(2))
    check(updates, "auto", symbols, 3, assert_same_update)


@settings(max_examples=300, deadline=None)
@given(
    form=st.sampled_from(SPARSE),
    every=st.booleans(),
    at=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
    cut=st.sampled_from([0, 0, 0, 1, 40]),
    mended=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_damaged_is_read_as_one_by_one_or_not_at_all(
    assert_same_update: Same,
    form: Form,
    every: bool,
    at: float,
    value: int,
    cut: int,
    mended: bool,
    seed: int,
) -> None:
    rng, sizes = np.random.default_rng(seed), [60, 300, 9]
    updates = dense(form, sizes, rng) if every and form in DENSE else sparse(form, sizes, 0.2, rng)
    payload = written_at_once(updates, "auto", "auto")
    payload[int(at * payload.size)] = value
    payload = payload[: payload.size - cut].copy()
    if mended:
        _mend_checksums(payload)
    found = columns_in(form, updates.n, payload)
    if found is not None:  # otherwise `message` reads them, or says what is wrong
        pieces = find_messages(payload, len(sizes))
        for here, there in zip(found, message.read_all(pieces, found.n.tolist()), strict=True):
            assert isinstance(there, Update)
            assert_same_update(here, there)


def _mend_checksums(payload: np.ndarray) -> None:
    """Gives messages the checksums that make damage look as if it had been sent."""
    try:
        pieces = find_messages(payload, 3)
    except CorruptMessage:
        return
    for piece in pieces:  # they share the payload's memory
        piece[CRC_AT:HEADER_BYTES] = 0
        piece[CRC_AT:HEADER_BYTES] = np.frombuffer(struct.pack("<I", zlib.crc32(piece.data)), np.uint8)
