"""Messages: what stands where, and that nothing but a message is taken for one."""

import struct
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from cases import in_turn
from formats import FORMATS
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.errors import CompressionError, CorruptMessage
from taugrad.compressors.ops.cpu.wire import find_messages
from taugrad.compressors.wire import message
from taugrad.compressors.wire.codecs import codec_by_code, codec_by_name
from taugrad.compressors.wire.forms import FORMS, Form
from taugrad.compressors.wire.message import HEADER_BYTES, LARGEST_N, NonFinite
from taugrad.compressors.wire.update import Update

RULE_CODE = {"wgt": 1, "bgt": 2, "qgt": 3, "strom": 4, "f32": 5, "fp16": 6, "bf16": 7, "fp8": 8}
RULE_CODE |= {"linear": 9, "quantile": 10}
CODEC_CODE = {"raw": 0, "packed32": 1, "bitmap": 2, "golomb_rice": 3, "every": 4, "chunked": 5}
RandomUpdate = Callable[..., Update]
NAN, INF = float("nan"), float("inf")

every_case = in_turn(("rule", "codec"), [(form, codec.name) for codec, form in FORMATS])


def read(data: bytes, n: int | None = None) -> Update | NonFinite:
    """Reads from memory of its own, as a transport hands it over; by default the n it wants to have."""
    if n is None:
        n = struct.unpack_from("<I", data, 8)[0] if len(data) >= HEADER_BYTES else 0
    return message.read(np.frombuffer(bytearray(data), np.uint8), n)


def sealed(data: bytes) -> bytes:
    """The same bytes with the checksum that the docstring of `message` asks for."""
    checksum = zlib.crc32(data[:28] + bytes(4) + data[32:])
    return data[:28] + struct.pack("<I", checksum) + data[32:]


def forged(
    rule: int | str,
    codec: int | str,
    n: int,
    k: int,
    body: bytes,
    *,
    tau: float = 0.25,
    state: int = 0,
    length: int | None = None,
    magic: bytes = b"tg",
    version: int = 1,
    symbols: int = 0,
    reserved: int = 0,
) -> bytes:
    """A message with a valid checksum, whatever it holds."""
    rule_code = RULE_CODE[rule] if isinstance(rule, str) else rule
    codec_code = codec_by_name(codec).code if isinstance(codec, str) else codec
    size = len(body) if length is None else length
    head = magic + bytes([version, rule_code, codec_code, state, symbols, reserved])
    head += struct.pack("<IIf", n, k, tau)
    return sealed(head + struct.pack("<QI", size, 0) + body)


def words(*signed: int) -> bytes:
    """Packed words; a position p that is sent with minus is given as ~p."""
    return np.array([~p << 1 | 1 if p < 0 else p << 1 for p in signed], "<u4").tobytes()


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def levels(*values: int) -> bytes:
    return np.array(values, "<i2").tobytes()


def sample(rule: Form, codec: str, random_update: RandomUpdate, n: int = 21, k: int = 6) -> bytes:
    """A short message: some random tables of quantiles take megabytes."""
    for seed in range(100):
        written = message.write(random_update(codec, rule, n, k, np.random.default_rng(seed)), codec)
        if written.size < 200:
            return written.tobytes()
    raise AssertionError("no short message in 100")


def assert_canonical(data: bytes) -> None:
    """Fails unless these bytes are a message that would be written just so."""
    found = read(data)
    if isinstance(found, NonFinite):
        assert message.write_nonfinite(found).tobytes() == data
        return
    assert 0 <= found.k <= found.n
    positions = range(found.n) if found.words is None else (found.words >> 1).tolist()
    assert list(positions) == sorted(set(positions))
    assert not positions or positions[-1] < found.n
    assert np.isfinite(found.floats()).all()
    written = message.write(found, codec_by_code(data[4]).name, ("raw", "huffman")[data[6]]).tobytes()
    if data[6] == 0 and (data[4] != CODEC_CODE["golomb_rice"] or data[32:33] == written[32:33]):
        assert written == data
        return
    # A codebook need not be the best one, nor Golomb-Rice blocks as long as they are written.
    again = read(written)
    assert isinstance(again, Update)
    assert again.floats().tobytes() == found.floats().tobytes()
    assert (again.words is None) == (found.words is None)
    assert again.words is None or again.words.tobytes() == found.words.tobytes()


@every_case
def test_the_header_stands_where_the_documentation_says(
    rule: Form, codec: str, random_update: RandomUpdate
) -> None:
    data = sample(rule, codec, random_update)
    assert data[:3] == b"tg\x01"
    assert data[3] == RULE_CODE[rule]
    assert data[4] == CODEC_CODE[codec]
    assert data[5:6] == b"\0"
    assert data[6] in ((0, 1) if FORMS[rule].symbols else (0,))
    assert data[7:8] == b"\0"
    found = read(data)
    assert isinstance(found, Update)
    assert struct.unpack_from("<II", data, 8) == (21, found.k)
    assert found.k == {"every": 21, "chunked": found.k}.get(codec, 6)
    assert struct.unpack_from("<f", data, 16) == (0.25 if FORMS[rule].has_tau else 0,)
    assert struct.unpack_from("<Q", data, 20) == (len(data) - 32,)
    assert struct.unpack_from("<I", data, 28) == (zlib.crc32(data[:28] + bytes(4) + data[32:]),)
    assert HEADER_BYTES == 32


def test_a_refusal_is_a_header_alone_and_comes_back() -> None:
    refusal = NonFinite("qgt", 11, np.float32(0.25), 2)
    data = message.write_nonfinite(refusal).tobytes()
    golden = "74 67 01 03 00 01 00 00 0b 00 00 00 02 00 00 00 00 00 80 3e 00 00 00 00 00 00 00 00 ce 87 f8 d3"
    assert data.hex(" ") == golden
    assert read(data) == refusal


@every_case
def test_every_flipped_bit_is_found(rule: Form, codec: str, random_update: RandomUpdate) -> None:
    data = sample(rule, codec, random_update)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMessage):
            read(damaged)
    assert_canonical(data)


@every_case
def test_every_truncation_and_every_trailing_byte_is_found(
    rule: Form, codec: str, random_update: RandomUpdate
) -> None:
    data = sample(rule, codec, random_update)
    for length in range(len(data)):
        with pytest.raises(CorruptMessage):
            read(data[:length])
    for trailing in (b"\0", b"\xff", bytes(8), data):
        with pytest.raises(CorruptMessage):
            read(data + trailing)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), prefix=st.sampled_from([b"", b"tg", b"tg\x01\x01\x01\x00\x00\x00"]))
def test_random_bytes_are_no_message(data: bytes, prefix: bytes) -> None:
    with pytest.raises(CorruptMessage):
        read(prefix + data)


def test_every_error_of_a_message_is_a_compression_error_and_a_value_error() -> None:
    with pytest.raises(CompressionError):
        read(b"")
    with pytest.raises(ValueError, match="less than a header"):
        read(b"")


# What each of these would be, mended, is in the comment beside it or in the id.
INCONSISTENT = {
    "wrong magic": forged("bgt", "packed32", 9, 1, words(3), magic=b"tx"),
    "unknown version": forged("bgt", "packed32", 9, 1, words(3), version=2),
    "unknown form": forged(11, "packed32", 9, 1, words(3)),
    "form 0": forged(0, "packed32", 9, 1, words(3)),
    "unknown codec": forged("bgt", 6, 9, 1, words(3)),
    "unknown state": forged("bgt", "packed32", 9, 1, words(3), state=2),
    "reserved bits": forged("bgt", "packed32", 9, 1, words(3), reserved=1),
    "symbols unknown": forged("qgt", "packed32", 9, 1, words(3) + b"\x01", symbols=2),
    "symbols of a form without": forged("bgt", "packed32", 9, 1, words(3), symbols=1),
    "symbols of nothing": forged("qgt", "packed32", 9, 0, b"", symbols=1),
    "symbols in raw": forged("qgt", "raw", 2, 1, levels(1, 0), symbols=1),
    "tau of a form without": forged("f32", "packed32", 9, 1, words(3) + floats(1)),
    "tau -0 of a form without": forged("f32", "packed32", 9, 1, words(3) + floats(1), tau=-0.0),
    "tau 0": forged("bgt", "packed32", 9, 1, words(3), tau=0.0),
    "tau -0": forged("bgt", "packed32", 9, 1, words(3), tau=-0.0),
    "tau below 0": forged("bgt", "packed32", 9, 1, words(3), tau=-0.25),
    "tau NaN": forged("bgt", "packed32", 9, 1, words(3), tau=NAN),
    "tau Inf": forged("bgt", "packed32", 9, 1, words(3), tau=INF),
    "tau denormal": forged("bgt", "packed32", 9, 1, words(3), tau=1e-40),
    "tau so large that 255 of it are infinite": forged(
        "qgt", "packed32", 9, 1, words(3) + b"\xff", tau=2.0**121
    ),
    "n beyond 31 bits": forged("bgt", "packed32", 2**31, 1, words(3)),
    "k beyond n": forged("bgt", "packed32", 1, 2, words(0, 1)),
    "length says more": forged("bgt", "packed32", 9, 1, words(3), length=8),
    "length says less": forged("bgt", "packed32", 9, 1, words(3), length=0),
    "body longer than k": forged("bgt", "packed32", 9, 1, words(3, 4)),
    "body shorter than k": forged("bgt", "packed32", 9, 2, words(3)),
    "body of no whole word": forged("bgt", "packed32", 9, 1, words(3) + b"\0"),
    "a refusal with a body": forged("bgt", "raw", 4, 0, bytes(4), state=1),
    "a refusal with a codec": forged("bgt", "packed32", 4, 0, b"", state=1),
    "positions descend": forged("bgt", "packed32", 9, 2, words(4, 3)),
    "a position twice": forged("bgt", "packed32", 9, 2, words(4, 4)),
    "a position twice, with both signs": forged("bgt", "packed32", 9, 2, words(4, ~4)),
    "a position is n": forged("bgt", "packed32", 9, 1, words(9)),
    "a position far beyond n": forged("bgt", "packed32", 9, 1, b"\xff\xff\xff\xff"),
    "n = 0 with an element": forged("bgt", "packed32", 0, 1, words(0)),
    "wgt packed32 NaN": forged("wgt", "packed32", 9, 1, words(3) + floats(NAN)),
    "wgt packed32 Inf": forged("wgt", "packed32", 9, 1, words(3) + floats(INF)),
    "wgt packed32 -Inf": forged("wgt", "packed32", 9, 1, words(~3) + floats(-INF)),
    "wgt packed32 below tau": forged("wgt", "packed32", 9, 1, words(3) + floats(0.2499)),
    "wgt packed32 zero": forged("wgt", "packed32", 9, 1, words(3) + floats(0.0)),
    "wgt packed32 plus for minus": forged("wgt", "packed32", 9, 1, words(~3) + floats(1.0)),
    "wgt packed32 minus for plus": forged("wgt", "packed32", 9, 1, words(3) + floats(-1.0)),
    "qgt packed32 level 0": forged("qgt", "packed32", 9, 2, words(3, 4) + b"\x01\x00"),
    "bitmap with more elements than k": forged("bgt", "bitmap", 9, 1, b"\x03\x00\x00"),
    "bitmap with fewer elements than k": forged("bgt", "bitmap", 9, 2, b"\x01\x00\x00"),
    "bitmap with a spare bit for an element": forged("bgt", "bitmap", 9, 1, b"\x00\x02\x00"),
    "bitmap with a spare bit too many": forged("bgt", "bitmap", 9, 1, b"\x01\x80\x00"),
    "bitmap with a spare sign": forged("bgt", "bitmap", 9, 1, b"\x01\x00\x02"),
    "bitmap qgt level 0": forged("qgt", "bitmap", 9, 1, b"\x01\x00\x00\x00"),
    "bitmap wgt NaN": forged("wgt", "bitmap", 9, 1, b"\x01\x00" + floats(NAN)),
    "bitmap wgt -NaN": forged("wgt", "bitmap", 9, 1, b"\x01\x00" + b"\x00\x00\xc0\xff"),
    "bitmap wgt Inf": forged("wgt", "bitmap", 9, 1, b"\x01\x00" + floats(INF)),
    "bitmap wgt below tau": forged("wgt", "bitmap", 9, 1, b"\x01\x00" + floats(-0.1)),
    "bitmap wgt -0.0": forged("wgt", "bitmap", 9, 1, b"\x01\x00" + floats(-0.0)),
    "strom, packed, twice": forged("strom", "packed32", 9, 2, words(4, 4)),
    "packed32 f32 with a sign": forged("f32", "packed32", 9, 1, words(~3) + floats(-1), tau=0),
    "packed32 f32 NaN": forged("f32", "packed32", 9, 1, words(3) + floats(NAN), tau=0),
    "every f32 Inf": forged("f32", "every", 2, 2, floats(1, INF), tau=0),
    "every f32 of fewer": forged("f32", "every", 2, 1, floats(1), tau=0),
    "every f32 of none": forged("f32", "every", 0, 0, b"", tau=0),
    "every wgt": forged("wgt", "every", 1, 1, floats(1)),
    "every fp16 Inf": forged("fp16", "every", 1, 1, b"\x00\x7c", tau=0),
    "every fp16 NaN": forged("fp16", "every", 1, 1, b"\x01\xfc", tau=0),
    "every bf16 Inf": forged("bf16", "every", 1, 1, b"\x80\x7f", tau=0),
    "every bf16 of an odd byte": forged("bf16", "every", 1, 1, b"\x80\x3f\x00", tau=0),
    "fp8 NaN": forged("fp8", "every", 1, 1, b"\x08" + bytes(8) + b"\x7f", tau=0),
    "fp8 of 7 bits": forged("fp8", "every", 1, 1, b"\x07" + bytes(8) + b"\x01", tau=0),
    "fp8 scaled to Inf": forged("fp8", "every", 1, 1, b"\x08" + bytes(7) + b"\x78\x7e", tau=0),
    "fp8 scaled below what is written": forged("fp8", "every", 1, 1, b"\x08" + bytes(7) + b"\x81\x7e", tau=0),
    "linear of 0 bits": forged("linear", "every", 1, 1, bytes(16), tau=0),
    "linear of 17 bits": forged("linear", "every", 1, 1, b"\x11" + bytes(18), tau=0),
    "linear in a block of all": forged("linear", "every", 1, 1, b"\x01\0\0\0\x01" + bytes(12), tau=0),
    "linear with a reserved byte": forged("linear", "every", 1, 1, b"\x01\x01" + bytes(15), tau=0),
    "linear with spare bits": forged("linear", "every", 1, 1, b"\x01" + bytes(15) + b"\x02", tau=0),
    "linear from NaN": forged("linear", "every", 1, 1, b"\x01" + bytes(7) + floats(NAN, 1) + b"\0", tau=0),
    "linear by NaN": forged("linear", "every", 1, 1, b"\x01" + bytes(7) + floats(1, NAN) + b"\0", tau=0),
    "linear downwards": forged("linear", "every", 1, 1, b"\x01" + bytes(7) + floats(1, -1) + b"\0", tau=0),
    "linear to Inf": forged("linear", "every", 1, 1, b"\x01" + bytes(7) + floats(3e38, 3e38) + b"\0", tau=0),
    "linear without tables": forged("linear", "every", 1, 1, b"\x01" + bytes(7), tau=0),
    "quantile NaN": forged("quantile", "every", 1, 1, b"\x01" + bytes(8) + b"\0\x7e\0\0\0", tau=0),
    "quantile scaled to Inf": forged(
        "quantile", "every", 1, 1, b"\x01" + bytes(7) + b"\x7f" + bytes(5), tau=0
    ),
    "quantile with tables too large": forged("quantile", "every", 1, 1, b"\x10" + bytes(20), tau=0),
    "golomb_rice of nothing with bytes": forged("bgt", "golomb_rice", 9, 0, b"\x0c"),
    "golomb_rice without bytes": forged("bgt", "golomb_rice", 9, 1, b""),
    "golomb_rice, block beyond n": forged("bgt", "golomb_rice", 10, 3, bytes.fromhex("0c0a00000002002623")),
    "golomb_rice, padding": forged("bgt", "golomb_rice", 11, 3, bytes.fromhex("0c0a0000000200a623")),
    "golomb_rice, last position": forged("bgt", "golomb_rice", 11, 3, bytes.fromhex("0c0900000002002623")),
    "golomb_rice, too few": forged("bgt", "golomb_rice", 11, 4, bytes.fromhex("0c0a00000002002623")),
    "golomb_rice, blocks of 2^15": forged("bgt", "golomb_rice", 11, 3, bytes.fromhex("0f0a00000002002623")),
    "chunked of no power of two": forged(
        "f32", "chunked", 3, 1, bytes.fromhex("0300000001000000 01") + floats(1), tau=0
    ),
    "chunked keeps none": forged("f32", "chunked", 4, 0, bytes.fromhex("0400000000000000"), tau=0),
    "chunked keeps more than all": forged(
        "f32", "chunked", 2, 2, bytes.fromhex("0200000003000000 02") + floats(1, 1), tau=0
    ),
    "chunked beyond a short chunk": forged(
        "f32", "chunked", 3, 1, bytes.fromhex("0400000001000000 03") + floats(1), tau=0
    ),
    "chunked with spare bits": forged(
        "f32", "chunked", 4, 1, bytes.fromhex("0400000001000000 05") + floats(1), tau=0
    ),
    "chunked where a sign stands apart": forged("bgt", "chunked", 4, 1, bytes.fromhex("0400000001000000 01")),
    "raw f32": forged("f32", "raw", 2, 1, floats(1, 0), tau=0),
    "raw strom 2": forged("strom", "raw", 2, 1, b"\x02\x00"),
    "raw with more elements than k": forged("bgt", "raw", 3, 1, b"\x01\x00\xff"),
    "raw with fewer elements than k": forged("bgt", "raw", 3, 2, b"\x01\x00\x00"),
    "raw wgt NaN": forged("wgt", "raw", 2, 1, floats(0, NAN)),
    "raw wgt Inf": forged("wgt", "raw", 2, 1, floats(-INF, 0)),
    "raw wgt below tau": forged("wgt", "raw", 2, 1, floats(0.1, 0)),
    "raw wgt -0.0 beside a value": forged("wgt", "raw", 2, 1, floats(-0.0, 1)),
    "raw wgt -0.0 for a value": forged("wgt", "raw", 2, 1, floats(-0.0, 0)),
    "raw wgt -0.0 and k = 0": forged("wgt", "raw", 1, 0, floats(-0.0)),
    "raw bgt 2": forged("bgt", "raw", 2, 1, b"\x02\x00"),
    "raw bgt -128": forged("bgt", "raw", 2, 1, b"\x80\x00"),
    "raw qgt 256": forged("qgt", "raw", 2, 1, levels(256, 0)),
    "raw qgt -256": forged("qgt", "raw", 2, 2, levels(1, -256)),
    "raw qgt -32768": forged("qgt", "raw", 2, 1, levels(-32768, 0)),
}


@in_turn("data", INCONSISTENT.values(), ids=INCONSISTENT)
def test_contents_that_contradict_each_other_are_refused_under_a_valid_checksum(data: bytes) -> None:
    assert data == sealed(data)
    with pytest.raises(CorruptMessage) as raised:
        read(data)
    assert "checksum" not in str(raised.value)


CONSISTENT = {
    "packed32 strom": forged("strom", "packed32", 9, 2, words(~3, 4)),
    "packed32 f32": forged("f32", "packed32", 9, 2, words(3, 4) + floats(-0.0, 1e-45), tau=0),
    "every f32": forged("f32", "every", 1, 1, floats(0), tau=0),
    "every fp8": forged("fp8", "every", 1, 1, b"\x08" + bytes(7) + b"\x77\x7e", tau=0),
    "every linear": forged("linear", "every", 1, 1, b"\x01" + bytes(7) + floats(-1, 1) + b"\x01", tau=0),
    "every quantile": forged(
        "quantile", "every", 1, 1, b"\x01" + bytes(7) + b"\x71" + b"\xff\x77" * 2 + b"\1", tau=0
    ),
    "golomb_rice bgt": forged("bgt", "golomb_rice", 11, 3, bytes.fromhex("0c0a00000002002623")),
    "golomb_rice in blocks of 2^14": forged("bgt", "golomb_rice", 11, 3, bytes.fromhex("0e0a00000002002623")),
    "golomb_rice in shorter blocks": forged("bgt", "golomb_rice", 11, 3, bytes.fromhex("040a00000002002623")),
    "chunked f32": forged("f32", "chunked", 4, 1, bytes.fromhex("0400000001000000 03") + floats(1), tau=0),
    "packed32 bgt": forged("bgt", "packed32", 9, 2, words(~3, 4)),
    "packed32 wgt at tau": forged("wgt", "packed32", 9, 2, words(~3, 8) + floats(-0.25, 3e38)),
    "packed32 qgt": forged("qgt", "packed32", 9, 2, words(~3, 8) + b"\x01\xff"),
    "bitmap bgt": forged("bgt", "bitmap", 9, 2, b"\x01\x01\x03"),
    "bitmap wgt": forged("wgt", "bitmap", 9, 1, b"\x00\x01" + floats(-0.25)),
    "raw qgt": forged("qgt", "raw", 2, 2, levels(255, -255)),
    "raw wgt": forged("wgt", "raw", 2, 1, floats(0, -0.25)),
    "nothing of nothing": forged("wgt", "raw", 0, 0, b""),
    "nothing of the largest n": forged("wgt", "packed32", LARGEST_N, 0, b""),
    "the largest tau": forged("qgt", "packed32", 9, 1, words(3) + b"\xff", tau=2.0**119),
    "the smallest tau": forged("qgt", "packed32", 9, 1, words(3) + b"\xff", tau=2.0**-126),
    "a refusal": forged("bgt", 0, 4, 3, b"", state=1),
}


@in_turn("data", CONSISTENT.values(), ids=CONSISTENT)
def test_a_forgery_without_a_contradiction_is_a_message(data: bytes) -> None:
    assert_canonical(data)


@every_case
@in_turn("k", [1, 1000, LARGEST_N])
@in_turn("honest_length", [True, False])
def test_a_claimed_size_takes_no_memory(rule: Form, codec: str, k: int, honest_length: bool) -> None:
    """A short message that claims up to 2^31 - 1 elements is refused before anything is made for them."""
    length = None if honest_length else 5 * LARGEST_N
    tau = 0.25 if FORMS[rule].has_tau else 0.0
    for symbols in (0, 1):
        for body in (bytes(16), b"\x08" + bytes(15), b"\x0c\xfe\xff\xff\x7f" + b"\xff" * 20):
            data = forged(rule, codec, LARGEST_N, k, body, tau=tau, symbols=symbols, length=length)
            assert_refused_without_memory(data)


def assert_refused_without_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessage):
            read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**18


@every_case
def test_a_message_of_another_size_than_is_due_is_refused(
    rule: Form, codec: str, random_update: RandomUpdate
) -> None:
    data = sample(rule, codec, random_update)
    for n in (0, 20, 22, LARGEST_N, 2**40, -1):
        with pytest.raises(CorruptMessage, match="where"):
            read(data, n)
    refusal = message.write_nonfinite(NonFinite("qgt", 11, np.float32(0.25), 2)).tobytes()
    with pytest.raises(CorruptMessage, match="of 11 elements where 12 are due"):
        read(refusal, 12)


def test_a_payload_is_split_by_lengths() -> None:
    first = forged("bgt", "packed32", 9, 2, words(~3, 4))
    second = forged("f32", "every", 1, 1, floats(0), tau=0)
    payload = np.frombuffer(first + second + first, np.uint8)
    assert [piece.tobytes() for piece in find_messages(payload, 3)] == [first, second, first]
    assert find_messages(payload[:0], 0) == []
    with pytest.raises(CorruptMessage, match="more messages than there can be"):
        find_messages(payload, 2)
    for cut in (1, 31, len(first) - 1, len(first) + 5, payload.size - 1):
        with pytest.raises(CorruptMessage):
            find_messages(payload[:cut], 3)
    huge = bytearray(first)
    huge[20:28] = b"\xff" * 8
    with pytest.raises(CorruptMessage):
        find_messages(np.frombuffer(huge, np.uint8), 3)


def test_an_update_too_long_for_a_message_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at most 2147483647 elements"):
        message.write(Update.empty("wgt", LARGEST_N + 1, np.float32(1)))


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """One to four damages of the kinds that storage, networks and hands do."""
    damaged = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(len(damaged) + 1))
        kind = rng.integers(7)
        if kind == 0:
            damaged[at:at] = rng.bytes(int(rng.integers(1, 5)))
        elif kind == 1:
            del damaged[at : at + int(rng.integers(1, 5))]
        elif kind == 2 and len(damaged) > 28:
            field, size = [(3, 1), (4, 1), (5, 1), (8, 1), (12, 1), (16, 4), (20, 1)][rng.integers(7)]
            damaged[field : field + size] = bytes(rng.integers(0, 4, size, np.uint8))
        elif at < len(damaged):
            damaged[at] = [damaged[at] ^ (1 << int(rng.integers(8))), 0, 255, int(rng.integers(256))][
                kind % 4
            ]
    if rng.random() < 0.3 and len(damaged) >= 28:
        damaged[20:28] = struct.pack("<Q", max(len(damaged) - 32, 0))
    return bytes(damaged)


@every_case
def test_mutated_messages_are_refused_or_are_messages(
    rule: Form, codec: str, random_update: RandomUpdate
) -> None:
    rng = np.random.default_rng([RULE_CODE[rule], CODEC_CODE[codec]])
    accepted = refused = 0
    for _ in range(500):
        n = int(rng.integers(1, 20))
        update = random_update(codec, rule, n, int(rng.integers(0, n + 1)), rng)
        data = mutated(message.write(update, codec).tobytes(), rng)
        if rng.random() < 0.5 and len(data) >= HEADER_BYTES:
            data = sealed(data)
        try:
            read(data)
        except CorruptMessage:
            refused += 1
        else:
            accepted += 1
            assert_canonical(data)
    assert accepted > 4
    assert refused > 220
