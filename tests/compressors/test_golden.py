"""Golden messages: bytes that pin every wire format for ever, each to be read by hand."""

import struct
import zlib
from typing import Any

import numpy as np
from cases import in_turn
from formats import CODEC_CODE, FORM_CODE, OWN_TAUS, forged
from messages import segments_of, write
from updates import assert_same_update

from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.interface import Form
from taugrad.compressors.wire import message
from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.positions import BUILTIN
from taugrad.compressors.wire.positions import DENSE as DENSE_CODE
from taugrad.compressors.wire.update import Chunks, Update

# Golden messages are put together from sections: taus, positions as a codec writes them, values of a form.
# Most are about two parameters of 5 and 6 elements, whose taus are 0.25 and 0.5. Element 1 is sent with plus,
# element 2 with minus, and element 10, of the second parameter, with plus; values 0.5, -0.25, 3.0; levels 1,
# 255, 7.
#
# One of them as a whole, bgt in packed32:
#   74 67        magic, "tg"                   0b 00 00 00              n = 11
#   02           version                       03 00 00 00              k = 3
#   02           form 2, bgt                   14 00 00 00 00 00 00 00  20 bytes of body
#   01           codec 1, packed32             ...                      CRC-32
#   04           flags: own taus               00 00 80 3e 00 00 00 3f  tau = 0.25, 0.5
#   00           bits of a symbol              02 00 00 00  05 00 00 00  14 00 00 00
#   00           reserved                        words 1 << 1 | 0, 2 << 1 | 1, 10 << 1 | 0
TAUS = "00 00 80 3e 00 00 00 3f"
# golomb_rice positions: 0e, blocks of 2^14 words; 0a 00 00 00, the block's last position is 10; 02 00, it
# takes 2 bytes. Positions 1, 2, 10 leave gaps of 1, 0 and 7; 3 words over 11 positions make b = 1. Fields,
# lowest bit first, are a sign and gap mod 2: 0 1, 1 0, 0 1 = 0x26; quotients 0, 0, 3 in unary are
# 1, 1, 0 0 0 1 = 0x23. Without signs the fields are 1, 0, 1 = 0x05.
# chunked positions (1, 7, 10; one of each chunk of 4 in parameters of 4 and 7): u32 chunk, u32 keep, 03: both
# parameters are sent, then the indices 1, 3, 2 in 2 bits each, 1 + (3 << 2) + (2 << 4) = 0x2d.
# drawn positions: 2 and 1 elements by the keys 1 and 4.
# every: nothing where both parameters are sent whole; 02, the second one alone.
# raw: all elements, of f32, int8 or int16.
SIGNED, UNSIGNED = "02 00 00 00 05 00 00 00 14 00 00 00", "02 00 00 00 04 00 00 00 14 00 00 00"
POSITIONS = {
    ("packed32", True): SIGNED,
    ("packed32", False): UNSIGNED,
    ("bitmap", True): "06 04 02",
    ("bitmap", False): "06 04",
    ("golomb_rice", True): "0e 0a 00 00 00 02 00 26 23",
    ("golomb_rice", False): "0e 0a 00 00 00 02 00 05 23",
    ("chunked", False): "04 00 00 00 01 00 00 00 03 2d",
    ("drawn", False): "02 00 00 00 01 00 00 00 01 00 00 00 04 00 00 00",
    ("every", False): "",
    ("every the second", False): "02",
}
DENSE: dict[Form, str] = {
    "bgt": "00 01 ff 00 00 00 00 00 00 00 01",
    "strom": "00 01 ff 00 00 00 00 00 00 00 01",
    "qgt": "00 00 01 00 01 ff 00 00 00 00 00 00 00 00 00 00 00 00 00 00 07 00",
    "f32": f"00 00 00 00 00 00 00 3f 00 00 80 be {' '.join(['00'] * 28)} 00 00 40 40",
}
# Values. Quantized forms begin with u32 block; two parameters have two blocks or more.
# fp8:      one block each; f9 and 00, scaled by 2^-7 and 1; 64, -32 and 3 as e4m3: 68, e0, 44.
# linear:   2 bits, one block each; lows -0.25 and 3.0; steps 0.25 and 0; symbols 3, 0, 0 in 2 bits = 0x03,
#           which are -0.25 + 3.5 * 0.25 = 0.625, -0.125 and 3.
# quantile: 1 bit, one block each; exponents 0 and 1; means -0.25, 1.75 and 0, 1.5 as float16; symbols
#           1, 0, 1 = 0x05.
# Huffman:  a codebook, u16 bytes of the stream, the stream. linear's: both codes that occur are 1 bit long,
#           14 (the limit) less 13: 1 1 1 1 and gamma(12) = 0 0 0 1 1 0 0; two symbols do not occur, 1 1 0
#           and gamma(2) = 0 1 0; the same length again, 0. In bytes, lowest bit first: 8f 99 00. The
#           stream has 01 00 = 1 byte: 1, 0, 0 = 0x01. quantile's: 1 1 1 1 0 0 0 1 1 0 0, 0 = 8f 01.
# own:      for each parameter bits, and 128 where they are Huffman coded: 2 and 3 bits; 02 03. Symbols 3, 0
#           of 2 bits = 0x03; then, at a whole byte, 5 of 3 bits = 0x05.
LINEAR = "00 00 00 00 00 00 80 be 00 00 40 40 00 00 80 3e 00 00 00 00"
FP8 = "00 00 00 00 f9 00"
QUANTILE = "00 00 00 00 00 01 00 b4 00 3f 00 00 00 3e"
VALUES: dict[tuple[Form, str], tuple[int, str]] = {
    ("bgt", "raw"): (0, ""),
    ("strom", "raw"): (0, ""),
    ("qgt", "raw"): (8, "01 ff 07"),
    ("qgt", "huffman"): (8, "fb e8 51 03 bc 17 01 00 19"),
    ("f32", "raw"): (0, "00 00 00 3f 00 00 80 be 00 00 40 40"),
    ("fp16", "raw"): (0, "00 38 00 b4 00 42"),
    ("bf16", "raw"): (0, "00 3f 80 be 40 40"),
    ("fp8", "raw"): (8, f"{FP8} 68 e0 44"),
    ("linear", "raw"): (2, f"{LINEAR} 03"),
    ("linear", "huffman"): (2, f"{LINEAR} 8f 99 00 01 00 01"),
    ("linear", "own"): (0, f"02 03 {LINEAR} 03 05"),
    ("quantile", "raw"): (1, f"{QUANTILE} 05"),
    ("quantile", "huffman"): (1, f"{QUANTILE} 8f 01 01 00 05"),
}
MEANT = {
    "fp8": [0.5, -0.25, 3.0],
    "linear": [0.625, -0.125, 3.0],
    "quantile": [1.75, -0.25, 3.0],
    "bgt": [0.25, -0.25, 0.5],
    "strom": [0.25, -0.25, 0.5],
    "qgt": [0.25, -63.75, 3.5],
}
FLAGS = {"raw": 0, "huffman": 1, "own": 2}


def values_of(form: Form, symbols: str) -> dict[str, Any]:
    """The fields of an update that golden values stand for."""
    floats, pair = np.array([0.5, -0.25, 3.0], np.float32), np.array([2, 2])
    exponents = np.array([0, 1], np.int8)
    fields: dict[str, dict[str, Any]] = {
        "qgt": {"values": np.array([1, 255, 7], np.uint8)},
        "f32": {"values": floats},
        "fp16": {"values": floats.astype(np.float16).view(np.uint16)},
        "bf16": {"values": np.array([0x3F00, 0xBE80, 0x4040], np.uint16)},
        "fp8": {
            "values": np.array([0x68, 0xE0, 0x44], np.uint8),
            "bits": 4 * pair,
            "tables": (np.array([-7, 0], np.int8),),
        },
        "linear": {
            "values": np.array([3, 0, 5 if symbols == "own" else 0], np.uint8),
            "bits": np.array([2, 3]) if symbols == "own" else pair,
            "tables": (np.array([-0.25, 3], np.float32), np.array([0.25, 0], np.float32)),
        },
        "quantile": {
            "values": np.array([1, 0, 1], np.uint8),
            "bits": pair // 2,
            "tables": (exponents, np.array([-0.25, 1.75, 0, 1.5], np.float16).view(np.uint16)),
        },
    }
    return fields.get(form, {})


def golden_update(form: Form, codec: str, symbols: str = "raw") -> Update:
    """The update that golden messages hold."""
    values, signs = values_of(form, symbols), np.array([0, FORMS[form].has_tau, 0], np.uint32)
    if codec == "every":
        return Update(form, segments_of([2, 1]), None, np.array([2, 1]), **values)
    positions, chunks, sizes = [1, 2, 10], None, [5, 6]
    if codec == "chunked":
        positions, chunks, sizes = [1, 7, 10], Chunks(4, 1), [4, 7]
    segments = segments_of(sizes)
    words = np.array(positions, np.uint32) << np.uint32(1) | signs
    taus = np.array([0.25, 0.5], np.float32) if FORMS[form].has_tau else None
    drawn = {"chunks": chunks, "keys": np.array([1, 4], np.uint32)}
    return Update(form, segments, words, segments.counts_of(words), taus=taus, **drawn, **values)


def golden(form: Form, codec: str, flags: int, bits: int, n: int, body: str, k: int = 3) -> bytes:
    """A message around a body, to which taus are added."""
    if FORMS[form].has_tau:
        flags, body = flags + OWN_TAUS, TAUS + body
    return forged(form, codec, n, k, bytes.fromhex(body), tau=None, flags=flags, bits=bits)


def test_codes_never_change() -> None:
    assert {form: traits.code for form, traits in FORMS.items()} == FORM_CODE
    assert {codec.name: codec.code for codec in BUILTIN} | {"every": DENSE_CODE} == CODEC_CODE


def test_one_message_as_a_whole() -> None:
    whole = """
        74 67 02 02 01 04 00 00 0b 00 00 00 03 00 00 00 14 00 00 00 00 00 00 00 {crc}
        00 00 80 3e 00 00 00 3f 02 00 00 00 05 00 00 00 14 00 00 00"""
    blank = bytes.fromhex(whole.format(crc="00 00 00 00"))
    crc = struct.pack("<I", zlib.crc32(blank)).hex()
    assert write(golden_update("bgt", "packed32"), "packed32").tobytes() == bytes.fromhex(
        whole.format(crc=crc)
    )


def sections() -> list[tuple[Form, str, str]]:
    """Every combination that can occur, but raw's bodies, which are no sections."""
    return [
        (form, codec, symbols)
        for form, symbols in VALUES
        for codec, signed in POSITIONS
        if signed == FORMS[form].has_tau and not (" " in codec or (symbols == "own" and codec == "chunked"))
    ]


@in_turn(("form", "codec", "symbols"), sections())
def test_golden_sections_are_written_and_read(form: Form, codec: str, symbols: str) -> None:
    update = golden_update(form, codec, symbols)
    bits, values = VALUES[form, symbols]
    if codec == "chunked" and FORMS[form].quantized:
        return  # its first parameter sends one element: tables would be others
    body = POSITIONS[codec, FORMS[form].has_tau] + values
    due = golden(form, codec, FLAGS[symbols], bits, update.n, body)
    asked = "raw" if symbols == "own" else symbols
    assert write(update, codec, asked).tobytes().hex(" ") == due.hex(" ")
    decoded = message.read(np.frombuffer(due, np.uint8), update.segments)
    assert_same_update(decoded, update)
    if symbols != "own":
        assert decoded.amounts(CPU).tolist() == MEANT.get(form, [0.5, -0.25, 3.0])


@in_turn("form", list(DENSE))
def test_golden_elements_written_out(form: Form) -> None:
    update = golden_update(form, "raw")
    due = golden(form, "raw", 0, 0, 11, DENSE[form])
    assert write(update, "raw").tobytes().hex(" ") == due.hex(" ")
    assert_same_update(message.read(np.frombuffer(due, np.uint8), update.segments), update)


def test_golden_parameters_that_are_held_back() -> None:
    values = np.array([0.5, -0.25, 3.0], np.float32)
    update = Update("f32", segments_of([2, 3]), None, np.array([0, 3]), values)
    due = golden("f32", "every", 0, 0, 5, POSITIONS["every the second", False] + VALUES["f32", "raw"][1])
    assert write(update).tobytes().hex(" ") == due.hex(" ")
    assert_same_update(message.read(np.frombuffer(due, np.uint8), update.segments), update)
