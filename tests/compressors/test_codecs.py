"""One suite for every codec: what is listed in OURS is tested, with each form that it can write."""

from collections.abc import Callable

import numpy as np
import pytest
from cases import in_turn
from formats import FORMATS, FORMS_OF, WITHOUT_TAU
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import decode, encode, size, write_all

from taugrad.compressors.config import read_config
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu.ops import CPU, CpuOps
from taugrad.compressors.wire import message
from taugrad.compressors.wire.codecs import OURS, Codec, codec_by_code, codec_by_name, plan_values
from taugrad.compressors.wire.forms import FORMS, Form
from taugrad.compressors.wire.message import HEADER_BYTES
from taugrad.compressors.wire.update import NO_TAU, Update

FORM_NAMES: tuple[Form, ...] = tuple(FORMS)
SYMBOLS = ("auto", "raw", "huffman")
"""How symbols may be asked for; it makes a difference for forms that have any."""
DrawUpdate = Callable[[st.DataObject, str, Form], Update]
RandomUpdate = Callable[..., Update]
AssertSame = Callable[[Update, Update], None]

every_codec = in_turn("codec", OURS)
every_form = in_turn("form", FORM_NAMES)
every_case = in_turn(("codec", "form"), FORMATS)
every_case_and_symbols = in_turn(
    ("codec", "form", "symbols"),
    [
        (codec, form, symbols)
        for codec, form in FORMATS
        for symbols in (SYMBOLS if FORMS[form].symbols and codec.name != "raw" else SYMBOLS[:1])
    ],
)
free_case = in_turn(("codec", "form"), [case for case in FORMATS if case[0].name not in ("every", "chunked")])
"""Codecs whose positions can be chosen freely."""


def test_every_codec_and_every_form_is_listed() -> None:
    assert set(FORMS_OF) == {codec.name for codec in OURS}


@every_case
@settings(max_examples=60, deadline=None)
@given(data=st.data(), symbols=st.sampled_from(SYMBOLS))
def test_every_update_comes_back_and_size_tells_the_bytes(
    codec: Codec,
    form: Form,
    symbols: str,
    draw_update: DrawUpdate,
    assert_same_update: AssertSame,
    data: st.DataObject,
) -> None:
    update = draw_update(data, codec.name, form)
    assert codec.fits(update)
    body, head = encode(codec, update, symbols)
    found = decode(codec, body, head)
    assert_same_update(found, update)
    assert found.chunks == update.chunks
    written = message.write(update, codec.name, symbols)
    assert written[HEADER_BYTES:].tobytes() == body.tobytes()
    read = message.read(written, update.n)
    assert isinstance(read, Update)
    assert_same_update(read, update)


@every_case_and_symbols
@in_turn(
    ("n", "k"),
    [
        (0, 0),
        (1, 0),
        (1, 1),
        (7, 7),
        (8, 8),
        (9, 9),
        (8, 0),
        (17, 3),
        (64, 64),
        (65, 64),
        (1000, 1),
        (70_001, 9),
        (70_001, 8200),
    ],
)
def test_edges_come_back(
    codec: Codec,
    form: Form,
    symbols: str,
    n: int,
    k: int,
    random_update: RandomUpdate,
    assert_same_update: AssertSame,
) -> None:
    n = max(n, 1) if codec.name == "every" else n  # of nothing there is no message of every element
    update = random_update(codec.name, form, n, k, np.random.default_rng(n + k))
    assert_same_update(decode(codec, *encode(codec, update, symbols)), update)
    by_threads = [message.write(update, codec.name, symbols, CpuOps(threads)) for threads in (1, 2)]
    assert by_threads[0].tobytes() == by_threads[1].tobytes()


@free_case
def test_the_last_possible_position_comes_back(
    codec: Codec, form: Form, random_update: RandomUpdate, assert_same_update: AssertSame
) -> None:
    n = 4096
    random = random_update(codec.name, form, n, 2, np.random.default_rng(1))
    signs = random.words & 1
    words = np.array([0, (n - 1) << 1], np.uint32) | signs
    update = Update(form, n, random.tau, words, random.values)
    assert_same_update(decode(codec, *encode(codec, update)), update)


@every_case_and_symbols
def test_bodies_are_read_from_any_address_and_from_read_only_memory(
    codec: Codec,
    form: Form,
    symbols: str,
    random_update: RandomUpdate,
    assert_same_update: AssertSame,
) -> None:
    update = random_update(codec.name, form, 45, 20, np.random.default_rng(3))
    body, head = encode(codec, update, symbols)
    for shift in (1, 2, 3):
        moved = np.zeros(body.size + 8, np.uint8)[shift : shift + body.size]
        moved[:] = body
        assert_same_update(decode(codec, moved, head), update)
    frozen = np.frombuffer(body.tobytes(), np.uint8)
    assert_same_update(decode(codec, frozen, head), update)


@every_form
@in_turn("codec", ["packed32", "golomb_rice"])
def test_positions_up_to_31_bits_are_told_apart(
    codec: str, form: Form, random_update: RandomUpdate, assert_same_update: AssertSame
) -> None:
    n = 2**31 - 1
    random = random_update(codec, form, 3, 3, np.random.default_rng(1))
    words = np.array([0, (n - 2) << 1, (n - 1) << 1], np.uint32) | (random.words & 1)
    update = Update(form, n, random.tau, words, random.values)
    found = message.read(message.write(update, codec), n)
    assert isinstance(found, Update)
    assert_same_update(found, update)


def sparse_words(n: int, k: int, seed: int) -> np.ndarray:
    """k distinct positions below n, without a permutation of all n."""
    rng = np.random.default_rng(seed)
    found = np.unique(rng.integers(0, n, k)) if n else np.empty(0, np.int64)
    return (found.astype(np.uint32) << np.uint32(1)) | rng.integers(0, 2, found.size).astype(np.uint32)


@in_turn("form", ["wgt", "bgt", "qgt", "strom"])
@settings(max_examples=200, deadline=None)
@given(n=st.integers(0, 2**31 - 1), k=st.integers(0, 3000), seed=st.integers(0, 2**32 - 1))
def test_smallest_is_the_minimum_over_all_codecs(form: Form, n: int, k: int, seed: int) -> None:
    words = sparse_words(n, k, seed)
    values = {"wgt": np.ones(words.size, np.float32), "qgt": np.ones(words.size, np.uint8)}
    update = Update(form, n, np.float32(1), words, values.get(form, np.empty(0, np.uint8)))
    values = plan_values(update, "auto", CPU)
    fitting = [codec for codec in OURS if codec.fits(update)]
    least = min(size(codec, update, values) for codec in fitting)
    assert message.write(update).size == message.HEADER_BYTES + least


def chosen_for(update: Update, symbols: str = "auto") -> Codec:
    """The codec that a message of an update names."""
    return codec_by_code(int(message.write(update, symbols=symbols)[4]))


def shortest(update: Update) -> int:
    """Bytes of the shortest message over all codecs that fit and all ways to write symbols."""
    return min(
        message.write(update, codec.name, symbols).size
        for codec in OURS
        if codec.fits(update)
        for symbols in ("raw", "huffman")
    )


@every_case
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_auto_writes_the_shortest_message(
    codec: Codec, form: Form, draw_update: DrawUpdate, data: st.DataObject
) -> None:
    update = draw_update(data, codec.name, form)
    assert message.write(update).size == shortest(update)


@every_form
@in_turn("density", [0.001, 0.03, 0.3, 0.9])
@in_turn("clustered", [False, True])
def test_auto_is_the_shortest_for_random_and_for_clustered_updates(
    form: Form, density: float, clustered: bool, random_update: RandomUpdate
) -> None:
    """Clustered: a tenth of the places holds nearly all of what is sent, as rows of an embedding do."""
    n, rng = 30_000, np.random.default_rng(7)
    chance = np.full(n, density)
    if clustered:
        chance = np.where(np.arange(n) // 300 % 10 == 0, min(8 * density, 0.99), density / 10)
    positions = np.flatnonzero(rng.random(n) < chance).astype(np.uint32)
    random = random_update("packed32", form, positions.size, positions.size, rng)
    update = Update(form, n, random.tau, positions << np.uint32(1) | random.words & 1, random.values)
    assert message.write(update).size == shortest(update)


@in_turn("form", ["wgt", "bgt", "qgt", "strom", "linear"])
def test_each_codec_is_the_smallest_somewhere(form: Form, random_update: RandomUpdate) -> None:
    rng = np.random.default_rng(2)
    winners = set()
    for k in [*range(6), *range(10, 1000, 30), *range(980, 1001)]:
        update = random_update("packed32", form, 1000, k, rng)
        winners.add(chosen_for(update, "raw").name)
    # Raw needs a byte or more an element, which a bitmap with 8-bit values or none never exceeds.
    assert winners == {"packed32", "golomb_rice", "bitmap"} | ({"raw"} if form == "wgt" else set())


def test_smallest_takes_the_first_of_several() -> None:
    update = Update.empty("wgt", 0, np.float32(1))
    assert chosen_for(update) is OURS[0]


def test_a_codec_that_is_asked_for_is_taken_though_others_are_shorter() -> None:
    update = Update.empty("wgt", 1000, np.float32(1))
    written = write_all([update, update], ["raw", "auto"])
    assert [codec_by_code(each[4]).name for each in written] == ["raw", OURS[0].name]


def test_codecs_are_found_by_name_and_by_code() -> None:
    for codec in OURS:
        assert codec_by_name(codec.name) is codec
        assert codec_by_code(codec.code) is codec
    assert len({codec.code for codec in OURS}) == len({codec.name for codec in OURS}) == len(OURS)
    with pytest.raises(CorruptMessage, match="codec 99 is unknown"):
        codec_by_code(99)
    with pytest.raises(KeyError):
        codec_by_name("zip")


@in_turn("codec", [codec for codec in OURS if codec.name != "every"])
def test_every_codec_of_positions_can_be_configured(codec: Codec) -> None:
    head = {"kind": "chunked_topk"} if codec.name == "chunked" else {"kind": "wgt", "tau": 1.0}
    assert read_config(head | {"codec": codec.name}).codec == codec.name  # type: ignore[union-attr]


@every_codec
@every_form
def test_a_codec_refuses_to_write_what_it_cannot(
    codec: Codec, form: Form, random_update: RandomUpdate
) -> None:
    for kind in ("packed32", "chunked", "every"):
        if kind == "every" and form not in WITHOUT_TAU:
            continue
        update = random_update(kind, form, 30, 7, np.random.default_rng(0))
        placed = kind == "every" if codec.name == "every" else kind != "every"
        fits = form in FORMS_OF[codec.name] and placed and (codec.name != "chunked" or kind == "chunked")
        assert codec.fits(update) == fits
        if not fits:
            with pytest.raises(ValueError, match=f"{codec.name} cannot write"):
                message.write(update, codec.name)


@every_form
def test_paper_bits_are_value_bits_alone(form: Form, random_update: RandomUpdate) -> None:
    update = random_update("packed32", form, 100, 10, np.random.default_rng(0))
    fixed = {"wgt": 32, "bgt": 1, "qgt": 8, "strom": 1, "f32": 32, "fp16": 16, "bf16": 16, "fp8": 8}
    bits = fixed.get(form) or update.values.bits
    assert update.paper_bits == 10 * bits
    assert update.value_bits * update.k == update.paper_bits


@every_form
def test_an_empty_update_sends_nothing(form: Form) -> None:
    update = Update.empty(form, 9, np.float32(1) if FORMS[form].has_tau else NO_TAU)
    assert (update.n, update.k, update.paper_bits) == (9, 0, 0)
    written = message.write(update)
    assert written.size == HEADER_BYTES
    found = message.read(written, 9)
    assert isinstance(found, Update)
    assert found.floats().size == 0
