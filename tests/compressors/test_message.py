"""Messages: what stands where, and that nothing but a message is taken for one."""

import struct
import tracemalloc
from collections.abc import Sequence

import messages
import numpy as np
import pytest
import updates
from cases import in_turn
from formats import FORMATS, HUFFMAN, OWN_CODES, forged, sealed
from messages import segments_of, write
from updates import check_by_the_page, check_rewritten, random_update

from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.errors import CompressionError, CorruptMessage
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.interface import Form
from taugrad.compressors.wire import message
from taugrad.compressors.wire.message import HEADER_BYTES, LARGEST_N, NonFinite
from taugrad.compressors.wire.update import Update

every_case = in_turn(("codec", "form"), FORMATS)


def read(data: bytes, sizes: Sequence[int] | None = None) -> Update | NonFinite:
    """Reads from memory of its own, as a transport hands it over; by default of one parameter of its n."""
    if sizes is None:
        sizes = struct.unpack_from("<I", data, 8) if len(data) >= HEADER_BYTES else (0,)
    return updates.read(np.frombuffer(bytearray(data), np.uint8), sizes)


def words(*signed: int) -> bytes:
    """Packed words; a position p that is sent with minus is given as ~p."""
    return np.array([~p << 1 | 1 if p < 0 else p << 1 for p in signed], "<u4").tobytes()


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def block(length: int = 0) -> bytes:
    return struct.pack("<I", length)


def sample(form: Form, codec: str) -> tuple[bytes, list[int]]:
    """A short message, and the sizes of its parameters: some random tables of quantiles take megabytes."""
    for seed in range(100):
        update = random_update(codec, form, 21, 6, np.random.default_rng(seed))
        written = write(update, codec)
        if written.size < 250 and len(update.segments) > 1:
            return written.tobytes(), update.segments.sizes.tolist()
    raise AssertionError("no short message in 100")


def test_a_refusal_is_a_header_alone_and_comes_back() -> None:
    refusal = NonFinite("qgt", 11, 2)
    data = message.write_nonfinite(refusal).tobytes()
    golden = "74 67 02 03 00 80 00 00 0b 00 00 00 02 00 00 00 00 00 00 00 00 00 00 00"
    assert data[:24].hex(" ") == golden
    assert data == sealed(data)
    assert read(data) == refusal
    for other, flags in ((b"\0", 128), (b"", 129)):
        with pytest.raises(CorruptMessage):
            read(forged("qgt", 0, 11, 2, other, tau=None, flags=flags))
    with pytest.raises(CorruptMessage, match="a refusal of 11 elements where 12 are due"):
        read(data, [12])


@every_case
def test_every_flipped_bit_truncation_and_trailing_byte_is_found(codec: str, form: Form) -> None:
    data, sizes = sample(form, codec)
    assert isinstance(read(data, sizes), Update)
    whole = int.from_bytes(data, "little")
    damaged = [(whole ^ 1 << bit).to_bytes(len(data), "little") for bit in range(8 * len(data))]
    damaged += [data[:length] for length in range(len(data))]
    damaged += [data + trailing for trailing in (b"\0", b"\xff", bytes(8), data)]
    for change in damaged:
        with pytest.raises(CorruptMessage):
            read(change, sizes)


def test_every_error_of_a_message_is_a_compression_error_and_a_value_error() -> None:
    with pytest.raises(CompressionError):
        read(b"")
    with pytest.raises(ValueError, match="less than a header"):
        read(b"")


def test_version_1_is_refused_by_name() -> None:
    golden = """
        74 67 01 02 01 00 00 00 0b 00 00 00 03 00 00 00 00 00 80 3e 0c 00 00 00 00 00 00 00 db a2 20 8a
        02 00 00 00 05 00 00 00 14 00 00 00"""
    with pytest.raises(CorruptMessage, match="version 1; this program reads version 2"):
        read(bytes.fromhex(golden), [11])


CONSISTENT = {
    "nothing of nothing": forged("f32", "raw", 0, 0, b""),
    "nothing of the largest n": forged("f32", "packed32", LARGEST_N, 0, b""),
    "the largest tau": forged("qgt", "packed32", 9, 1, words(3) + b"\xff", tau=2.0**119, bits=8),
    "the smallest tau": forged("qgt", "packed32", 9, 1, words(3) + b"\xff", tau=2.0**-126, bits=8),
}


@in_turn("data", CONSISTENT.values(), ids=CONSISTENT)
def test_consistent_forgeries_are_messages(data: bytes) -> None:
    result, (n,) = read(data), struct.unpack_from("<I", data, 8)
    if isinstance(result, Update):
        check_rewritten(result, data)
    if n != LARGEST_N:  # of which the page's decoder makes a list
        check_by_the_page(data, (n,), result)


@every_case
@in_turn("k", [1, 1000, LARGEST_N])
@in_turn("honest_length", [True, False])
def test_a_claimed_size_takes_no_memory(codec: str, form: Form, k: int, honest_length: bool) -> None:
    """A short message that claims up to 2^31 - 1 elements is refused before anything is made for them."""
    length = None if honest_length else 5 * LARGEST_N
    for flags, bits in ((0, 0), (0, 8), (HUFFMAN, 8), (OWN_CODES, 0)):
        for body in (bytes(16), b"\x08" + bytes(15), b"\x0c\xfe\xff\xff\x7f" + b"\xff" * 20):
            data = forged(form, codec, LARGEST_N, k, body, flags=flags, bits=bits, length=length)
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
def test_a_message_of_another_size_than_is_due_is_refused(codec: str, form: Form) -> None:
    data, _ = sample(form, codec)
    for n in (1, 20, 22, LARGEST_N):
        with pytest.raises(CorruptMessage, match=f"an update of 21 elements where {n} are due"):
            read(data, [n])


BGT = forged("bgt", "packed32", 9, 2, words(~3, 4))
WHOLE = forged("f32", "every", 4, 4, floats(1, 2, 3, 4))


def test_a_payload_has_the_messages_that_are_due() -> None:
    method = read_config("bgt(1, exempt=exempt(names=['whole']))")
    assert isinstance(method, CompressedMethod)
    reader = Compressor(method, Worker(CPU), Shard.whole({"a": 5, "whole": 4, "b": 4}))
    payload = np.frombuffer(BGT + WHOLE, np.uint8)
    sent, whole = reader.read(payload)
    assert isinstance(sent, Update)
    assert isinstance(whole, Update)
    assert (sent.k, sent.segments) == (2, reader.layout.sent)
    assert whole.amounts(CPU).tolist() == [1, 2, 3, 4]
    other = forged("strom", "packed32", 9, 1, words(3))
    wrong = {
        "it is of strom, this worker sends bgt": other + WHOLE,
        "bytes follow the last message": BGT + WHOLE + WHOLE,
        "are less than a header": BGT,
        "where parameters are sent whole": BGT + forged("fp16", "every", 4, 4, bytes(8)),
        "where 9 are due": WHOLE + BGT,
        "codec 77 is unknown": forged("bgt", 77, 9, 0, b"") + WHOLE,
    }
    for why, data in wrong.items():
        with pytest.raises(CorruptMessage, match=why):
            reader.read(np.frombuffer(data, np.uint8))
    for cut in (1, 27, len(BGT) - 1, len(BGT) + 5, payload.size - 1):
        with pytest.raises(CorruptMessage):
            reader.read(payload[:cut])
    huge = bytearray(BGT + WHOLE)
    huge[16:24] = b"\xff" * 8
    with pytest.raises(CorruptMessage, match="length: the header says"):
        reader.read(np.frombuffer(huge, np.uint8))
    refusal = message.write_nonfinite(NonFinite("bgt", 13, 1))
    assert reader.read(refusal) == NonFinite("bgt", 13, 1)
    other_refusal = message.write_nonfinite(NonFinite("qgt", 13, 1))
    with pytest.raises(CorruptMessage, match="the message of worker 1: it is of qgt"):
        reader.read_all({0: payload, 1: other_refusal})


def test_an_update_too_long_for_a_message_is_an_error_of_the_caller() -> None:
    segments = segments_of([LARGEST_N + 1])
    with pytest.raises(ValueError, match="at most 2147483647 elements"):
        messages.write(Update("f32", segments, np.empty(0, np.uint32), np.zeros(1, np.int64)))
