"""One suite for every codec: what is listed in CODECS is tested, with each rule."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors import message
from taugrad.compressors.codecs import CODECS, Codec, codec_by_code, codec_by_name, smallest
from taugrad.compressors.config import WholeGradient
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.kernels.threshold import ThresholdRule
from taugrad.compressors.message import HEADER_BYTES
from taugrad.compressors.update import VALUE_FORMAT, SparseUpdate

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt")
DrawUpdate = Callable[[st.DataObject, ThresholdRule], SparseUpdate]
RandomUpdate = Callable[..., SparseUpdate]
AssertSame = Callable[[SparseUpdate, SparseUpdate], None]

every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
every_rule = pytest.mark.parametrize("rule", RULES)


def encode(codec: Codec, update: SparseUpdate) -> np.ndarray:
    """The body that a codec writes, between bytes that it must leave alone."""
    size = codec.size(update.rule, update.n, update.k)
    fenced = np.full(size + 16, 0xA5, np.uint8)
    body = fenced[8 : size + 8]
    body[:] = 0
    codec.encode(update, body)
    assert (fenced[:8] == 0xA5).all()
    assert (fenced[size + 8 :] == 0xA5).all()
    return body


@every_codec
@every_rule
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_update_comes_back_and_size_tells_the_bytes(
    codec: Codec,
    rule: ThresholdRule,
    draw_update: DrawUpdate,
    assert_same_update: AssertSame,
    data: st.DataObject,
) -> None:
    update = draw_update(data, rule)
    body = encode(codec, update)
    assert_same_update(codec.decode(body, rule, update.n, update.k, update.tau), update)
    written = message.write(update, codec.name)
    assert written.size == HEADER_BYTES + codec.size(rule, update.n, update.k)
    assert written[HEADER_BYTES:].tobytes() == body.tobytes()
    found = message.read(written)
    assert isinstance(found, SparseUpdate)
    assert_same_update(found, update)


@every_codec
@every_rule
@pytest.mark.parametrize(
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
    ],
)
def test_edges_come_back(
    codec: Codec,
    rule: ThresholdRule,
    n: int,
    k: int,
    random_update: RandomUpdate,
    assert_same_update: AssertSame,
) -> None:
    update = random_update(rule, n, k, np.random.default_rng(n + k))
    assert_same_update(codec.decode(encode(codec, update), rule, n, k, update.tau), update)


@every_codec
@every_rule
def test_the_last_possible_position_comes_back(
    codec: Codec, rule: ThresholdRule, assert_same_update: AssertSame
) -> None:
    n = 4096
    words = np.array([0, (n - 1) << 1 | 1], np.uint32)
    values = {"wgt": np.array([1, -1], np.float32), "qgt": np.array([255, 1], np.uint8)}
    update = SparseUpdate(rule, n, np.float32(1), words, values.get(rule, np.empty(0, np.uint8)))
    assert_same_update(codec.decode(encode(codec, update), rule, n, 2, update.tau), update)


@every_codec
@every_rule
def test_bodies_are_read_from_any_address_and_from_read_only_memory(
    codec: Codec, rule: ThresholdRule, random_update: RandomUpdate, assert_same_update: AssertSame
) -> None:
    update = random_update(rule, 45, 20, np.random.default_rng(3))
    body = encode(codec, update)
    for shift in (1, 2, 3):
        moved = np.zeros(body.size + 8, np.uint8)[shift : shift + body.size]
        moved[:] = body
        assert_same_update(codec.decode(moved, rule, 45, 20, update.tau), update)
    frozen = np.frombuffer(body.tobytes(), np.uint8)
    assert_same_update(codec.decode(frozen, rule, 45, 20, update.tau), update)


@every_rule
def test_packed32_tells_positions_up_to_31_bits_apart(
    rule: ThresholdRule, assert_same_update: AssertSame
) -> None:
    n = 2**31 - 1
    words = np.array([0, (n - 2) << 1, (n - 1) << 1 | 1], np.uint32)
    values = {"wgt": np.array([1, 2, -1], np.float32), "qgt": np.array([1, 2, 3], np.uint8)}
    update = SparseUpdate(rule, n, np.float32(1), words, values.get(rule, np.empty(0, np.uint8)))
    found = message.read(message.write(update, "packed32"))
    assert isinstance(found, SparseUpdate)
    assert_same_update(found, update)


@every_rule
@settings(max_examples=200, deadline=None)
@given(n=st.integers(0, 2**31 - 1), share=st.floats(0, 1))
def test_smallest_is_the_minimum_over_all_codecs(rule: ThresholdRule, n: int, share: float) -> None:
    k = int(n * share)
    chosen = smallest(rule, n, k)
    assert chosen in CODECS
    assert chosen.size(rule, n, k) == min(codec.size(rule, n, k) for codec in CODECS)


@every_rule
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_auto_writes_the_shortest_message(
    rule: ThresholdRule, draw_update: DrawUpdate, data: st.DataObject
) -> None:
    update = draw_update(data, rule)
    assert message.write(update).size == min(message.write(update, codec.name).size for codec in CODECS)


@every_rule
def test_each_codec_is_the_smallest_somewhere(rule: ThresholdRule) -> None:
    winners = {smallest(rule, 1000, k).name for k in range(1001)}
    # Raw needs a byte or more an element, which a bitmap with 8-bit values or none never exceeds.
    assert winners == {"packed32", "bitmap"} | ({"raw"} if rule == "wgt" else set())


def test_smallest_takes_the_first_of_several() -> None:
    assert smallest("wgt", 0, 0).name == CODECS[0].name


def test_smallest_looks_only_among_those_given() -> None:
    assert smallest("wgt", 1000, 1, among=[codec_by_name("raw")]).name == "raw"


def test_codecs_are_found_by_name_and_by_code() -> None:
    for codec in CODECS:
        assert codec_by_name(codec.name) is codec
        assert codec_by_code(codec.code) is codec
    assert len({codec.code for codec in CODECS}) == len({codec.name for codec in CODECS}) == len(CODECS)
    with pytest.raises(CorruptMessage, match="codec 99 is unknown"):
        codec_by_code(99)
    with pytest.raises(KeyError):
        codec_by_name("zip")


@every_codec
def test_every_codec_can_be_configured(codec: Codec) -> None:
    assert WholeGradient.model_validate({"tau": 1.0, "codec": codec.name}).codec == codec.name


@every_rule
def test_paper_bits_are_value_bits_alone(rule: ThresholdRule, random_update: RandomUpdate) -> None:
    update = random_update(rule, 100, 10, np.random.default_rng(0))
    assert update.paper_bits == 10 * {"wgt": 32, "bgt": 1, "qgt": 8}[rule]
    assert VALUE_FORMAT[rule].paper_bits * update.k == update.paper_bits


@every_rule
def test_an_empty_update_sends_nothing(rule: ThresholdRule) -> None:
    update = SparseUpdate.empty(rule, 9, np.float32(1))
    assert (update.n, update.k, update.paper_bits) == (9, 0, 0)
    assert message.write(update).size == HEADER_BYTES


# Golden messages pin every format for ever. All hold the same update of n = 11 elements with tau = 0.25:
# element 1 plus, element 2 minus, element 10 plus; values 0.5, -0.25, 3.0 (wgt), levels 1, 255, 7 (qgt).
#
# How to read the first, wgt in packed32:
#   74 67        magic, "tg"                   0b 00 00 00              n = 11
#   01           version                       03 00 00 00              k = 3
#   01           rule 1, wgt                   00 00 80 3e              tau = 0.25
#   01           codec 1, packed32             18 00 00 00 00 00 00 00  24 bytes of body
#   00           state 0, an update            36 94 de df              CRC-32
#   00 00        reserved
# and its body: words 1 << 1 | 0 = 02, 2 << 1 | 1 = 05, 10 << 1 | 0 = 14, then 0.5, -0.25, 3.0.
GOLDEN = {
    ("wgt", "packed32"): """
        74 67 01 01 01 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 18 00 00 00 00 00 00 00 36 94 de df
        02 00 00 00 05 00 00 00 14 00 00 00 00 00 00 3f 00 00 80 be 00 00 40 40""",
    ("wgt", "bitmap"): """
        74 67 01 01 02 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 0e 00 00 00 00 00 00 00 a1 50 99 9e
        06 04 00 00 00 3f 00 00 80 be 00 00 40 40""",
    ("wgt", "raw"): """
        74 67 01 01 00 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 2c 00 00 00 00 00 00 00 6d 5e b9 67
        00 00 00 00 00 00 00 3f 00 00 80 be 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00 00 00 40 40""",
    ("bgt", "packed32"): """
        74 67 01 02 01 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 0c 00 00 00 00 00 00 00 db a2 20 8a
        02 00 00 00 05 00 00 00 14 00 00 00""",
    ("bgt", "bitmap"): """
        74 67 01 02 02 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 03 00 00 00 00 00 00 00 1e 79 40 77
        06 04 02""",
    ("bgt", "raw"): """
        74 67 01 02 00 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 0b 00 00 00 00 00 00 00 13 1e c0 b2
        00 01 ff 00 00 00 00 00 00 00 01""",
    ("qgt", "packed32"): """
        74 67 01 03 01 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 0f 00 00 00 00 00 00 00 ad ea fc 4c
        02 00 00 00 05 00 00 00 14 00 00 00 01 ff 07""",
    ("qgt", "bitmap"): """
        74 67 01 03 02 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 06 00 00 00 00 00 00 00 f9 a0 3e 46
        06 04 02 01 ff 07""",
    ("qgt", "raw"): """
        74 67 01 03 00 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 16 00 00 00 00 00 00 00 2a 89 9d ee
        00 00 01 00 01 ff 00 00 00 00 00 00 00 00 00 00 00 00 00 00 07 00""",
}


@every_codec
@every_rule
def test_golden_messages_are_written_and_read(
    codec: Codec, rule: ThresholdRule, assert_same_update: AssertSame
) -> None:
    values = {"wgt": np.array([0.5, -0.25, 3.0], np.float32), "qgt": np.array([1, 255, 7], np.uint8)}
    words = np.array([1 << 1, 2 << 1 | 1, 10 << 1], np.uint32)
    update = SparseUpdate(rule, 11, np.float32(0.25), words, values.get(rule, np.empty(0, np.uint8)))
    golden = bytes.fromhex(GOLDEN[rule, codec.name])
    assert message.write(update, codec.name).tobytes().hex(" ") == golden.hex(" ")
    found = message.read(np.frombuffer(golden, np.uint8))
    assert isinstance(found, SparseUpdate)
    assert_same_update(found, update)
