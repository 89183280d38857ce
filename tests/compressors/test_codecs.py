"""One suite for every codec and form: what is written comes back, and `auto` writes the shortest."""

from contextlib import suppress
from dataclasses import replace

import messages
import numpy as np
import pytest
from cases import in_turn
from formats import CODECS, FORMATS, FORMS_OF, WITHOUT_TAU
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import fenced, segments_of, words_of, write
from updates import assert_same_update, check_by_the_page, draw_update, random_update

from taugrad.compressors.ops.array import symbol_type
from taugrad.compressors.ops.cpu.bitpack import pack, packed_bytes, unpack
from taugrad.compressors.ops.interface import Form
from taugrad.compressors.wire import message
from taugrad.compressors.wire.forms import FORMS, GRADIENT_FORMS
from taugrad.compressors.wire.positions import BUILTIN
from taugrad.compressors.wire.update import Update

FORM_NAMES: tuple[Form, ...] = GRADIENT_FORMS
SYMBOLS = ("auto", "raw", "huffman")
"""How symbols may be asked for; it makes a difference for forms that have any."""

every_form = in_turn("form", FORM_NAMES)
every_case = in_turn(("codec", "form"), FORMATS)
every_case_and_symbols = in_turn(
    ("codec", "form", "symbols"),
    [
        (codec, form, symbols)
        for codec, form in FORMATS
        for symbols in (SYMBOLS if FORMS[form].symbols and codec != "raw" else SYMBOLS[:1])
    ],
)


def test_every_codec_and_every_form_is_listed() -> None:
    assert set(FORMS_OF) == set(CODECS)


@every_case
@settings(max_examples=30)
@given(data=st.data(), symbols=st.sampled_from(SYMBOLS))
def test_every_update_comes_back(codec: str, form: Form, symbols: str, data: st.DataObject) -> None:
    """Through our reader, and through the page's."""
    update = draw_update(data, codec, form)
    written = write(update, codec, symbols)
    assert_same_update(message.read(written, update.segments), update)
    check_by_the_page(written.tobytes(), tuple(update.segments.sizes.tolist()), update)


@every_case_and_symbols
@in_turn(("n", "k"), [(1, 0), (1, 1), (8, 8), (9, 9), (17, 3), (64, 64), (65, 64), (70_001, 8200)])
def test_edges_come_back(codec: str, form: Form, symbols: str, n: int, k: int) -> None:
    update = random_update(codec, form, n, k, np.random.default_rng(n + k))
    by_threads = [write(update, codec, symbols, threads) for threads in (1, 2)]
    assert by_threads[0].tobytes() == by_threads[1].tobytes()
    for threads in (1, 2):
        assert_same_update(message.read(by_threads[0], update.segments, threads), update)


@every_form
@in_turn("codec", ["packed32", "golomb_rice"])
def test_positions_up_to_31_bits_are_told_apart(codec: str, form: Form) -> None:
    segments = segments_of([2**30, 2**30 - 1])
    random = random_update(codec, form, 3, 3, np.random.default_rng(1), segments_of([1, 2]))
    words = words_of([0, 2**31 - 3, 2**31 - 2]) | (random.words & 1 if FORMS[form].has_tau else 0)
    update = replace(random, segments=segments, words=words)
    assert_same_update(message.read(write(update, codec), segments), update)


@every_form
def test_signs_of_words_mean_nothing_where_values_have_them(form: Form) -> None:
    """A pass leaves them there."""
    if FORMS[form].has_tau:
        return
    update = random_update("packed32", form, 50, 20, np.random.default_rng(0))
    plain = [write(update, codec.name).tobytes() for codec in BUILTIN[:3]]
    update.words |= np.uint32(1)
    assert [write(update, codec.name).tobytes() for codec in BUILTIN[:3]] == plain


def shortest(update: Update) -> int:
    """Bytes of the shortest message over all codecs that fit and all ways to write symbols."""
    results = []
    for codec in ("auto",) if update.words is None else [codec.name for codec in BUILTIN]:
        for symbols in ("raw", "huffman"):
            with suppress(ValueError):  # not every codec can write every update
                results.append(messages.write(update, codec, symbols).size)
    return min(results)


@every_case
@settings(max_examples=12)
@given(data=st.data())
def test_auto_writes_the_shortest_message(codec: str, form: Form, data: st.DataObject) -> None:
    update = draw_update(data, codec, form)
    assert messages.write(update).size <= shortest(update)


def test_codes_of_symbols_are_for_the_bucket_or_for_each_parameter_as_is_shorter() -> None:
    """Parameters of very different symbols have codes of their own, and those of like ones share one."""
    rng, segments = np.random.default_rng(0), segments_of([20_000, 20_000])
    low, high = (rng.geometric(0.5, 20_000).clip(1, 100).astype(np.uint8) for _ in range(2))
    for second, own_codes in ((high, False), (np.uint8(255) - high, True)):
        values, counts = np.concatenate([low, second]), segments.sizes
        words = words_of([*range(segments.n)])
        update = Update("qgt", segments, words, counts, values, np.ones(2, np.float32))
        written = messages.write(update)
        assert bool(written[5] & 2) == own_codes
        both = [low, second] if own_codes else [values]
        entropy = sum(
            float((n * np.log2(n.sum() / n)).sum())
            for codes in both
            for n in [np.bincount(codes)[np.unique(codes)]]
        )
        positions = messages.write(update, symbols="raw").size - values.size
        assert written.size - positions < 1.02 * entropy / 8 + 200
        assert message.read(written, segments).values.tolist() == values.tolist()


@in_turn("codec", [codec.name for codec in BUILTIN])
@every_form
def test_a_codec_refuses_to_write_what_it_cannot(codec: str, form: Form) -> None:
    for kind in ("packed32", "chunked", "drawn", "every"):
        if kind == "every" and form not in WITHOUT_TAU:
            continue
        update = random_update(kind, form, 30, 7, np.random.default_rng(0))
        if (
            kind != "every"
            and form in FORMS_OF[codec]
            and (codec not in ("chunked", "drawn") or codec == kind)
        ):
            messages.write(update, codec)
            continue
        with pytest.raises(ValueError, match=f"{codec} cannot write"):
            messages.write(update, codec)


def test_raw_cannot_write_a_value_that_is_zero() -> None:
    segments = segments_of([5])
    update = Update("f32", segments, words_of([1, 2]), np.array([2]), np.array([1, 0], np.float32))
    with pytest.raises(ValueError, match="raw cannot write"):
        messages.write(update, "raw")


def test_symbols_that_threads_share_are_packed_alike() -> None:
    k = 2**19 + 5  # shares have at least 2^18
    symbols = np.random.default_rng(0).integers(0, 8, k, np.uint8)
    one, other = (np.empty(packed_bytes(k, 3), np.uint8) for _ in range(2))
    pack(symbols, 3, one)
    pack(symbols, 3, other, threads=2)
    assert one.tobytes() == other.tobytes()
    assert np.array_equal(unpack(one, 3, k, threads=2), symbols)


@in_turn("bits", range(1, 17))
@in_turn("place", [0, 63, 64, 66])
def test_symbols_are_packed_as_one_large_integer_and_refused_if_they_do_not_fit(
    bits: int, place: int
) -> None:
    """Between bytes that must be left alone, over bytes that must not be trusted."""
    size = packed_bytes(67, bits)
    symbols = (np.random.default_rng(place).integers(0, 1 << 16, 67) % (1 << bits)).astype(symbol_type(bits))
    packed = fenced(size, lambda out: pack(symbols, bits, out, 2))
    whole = sum(int(symbol) << bits * i for i, symbol in enumerate(symbols))
    assert packed.tobytes() == whole.to_bytes(size, "little")
    if bits not in (8, 16):
        symbols[place] = 1 << bits
        with pytest.raises(ValueError, match="more than"):
            pack(symbols, bits, packed, 2)
