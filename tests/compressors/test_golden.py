"""Golden messages: bytes that pin every wire format for ever, each to be read by hand."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import in_turn
from taugrad.compressors.wire.codecs import OURS, codec_by_name
from taugrad.compressors.wire.quantized import Quantiles, ScaledFloats, Uniform

from taugrad.compressors.wire import message
from taugrad.compressors.wire.forms import FORMS, Form
from taugrad.compressors.wire.update import NO_TAU, Chunks, Update

AssertSame = Callable[[Update, Update], None]

# Golden messages pin every format for ever. All hold the same update of n = 11 elements with tau = 0.25:
# element 1 plus, element 2 minus, element 10 plus; values 0.5, -0.25, 3.0 (wgt), levels 1, 255, 7 (qgt).
#
# How to read the first, wgt in packed32:
#   74 67        magic, "tg"                   0b 00 00 00              n = 11
#   01           version                       03 00 00 00              k = 3
#   01           form 1, wgt                   00 00 80 3e              tau = 0.25
#   01           codec 1, packed32             18 00 00 00 00 00 00 00  24 bytes of body
#   00           state 0, an update            36 94 de df              CRC-32
#   00 00        reserved
# and its body: words 1 << 1 | 0 = 02, 2 << 1 | 1 = 05, 10 << 1 | 0 = 14, then 0.5, -0.25, 3.0.
GOLDEN: dict[tuple[Form, str], str] = {
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

# The other formats are put together from sections: positions as a codec writes them, then the values of
# a form. The update is the same (chunked positions apart), so are its values:
#
# golomb_rice positions: 0e, blocks of 2^14 words; 0a 00 00 00, the block's last position is 10; 02 00, it
# takes 2 bytes. Positions 1, 2, 10 leave gaps of 1, 0 and 7; 3 words over 11 positions make b = 1. Fields,
# lowest bit first, are a sign and gap mod 2: 0 1, 1 0, 0 1 = 0x26; quotients 0, 0, 3 in unary are
# 1, 1, 0 0 0 1 = 0x23. Without signs the fields are 1, 0, 1 = 0x05.
# chunked positions (1, 6, 10; one of each chunk of 4): u32 chunk, u32 keep, then the indices 1, 2, 2 in 2
# bits each, 1 + (2 << 2) + (2 << 4) = 0x29.
SIGNED, UNSIGNED, PLACED = (
    "02 00 00 00 05 00 00 00 14 00 00 00",
    "02 00 00 00 04 00 00 00 14 00 00 00",
    "06 04",
)
POSITIONS = {
    ("packed32", "signs apart"): SIGNED,
    ("packed32", "signs with both"): SIGNED,
    ("packed32", "signs in values"): UNSIGNED,
    ("bitmap", "signs apart"): f"{PLACED} 02",
    ("bitmap", "signs with both"): PLACED,
    ("bitmap", "signs in values"): PLACED,
    ("golomb_rice", "signs apart"): "0e 0a 00 00 00 02 00 26 23",
    ("golomb_rice", "signs with both"): "0e 0a 00 00 00 02 00 05 23",
    ("golomb_rice", "signs in values"): "0e 0a 00 00 00 02 00 05 23",
    ("chunked", "signs with both"): "04 00 00 00 01 00 00 00 29",
    ("chunked", "signs in values"): "04 00 00 00 01 00 00 00 29",
    ("every", "signs in values"): "",
}
# Values. Floats are 0.5, -0.25, 3.0. Quantized forms begin with a head: bits, 3 bytes 0, u32 block.
# fp8:      8 bits, one block; f9, scaled by 2^-7; so 64, -32 and 384 as e4m3: 68, e0, 7c.
# linear:   2 bits, blocks of 2; lows -0.25 and 3.0; steps 0.25 and 0; symbols 3, 0, 0 in 2 bits = 0x03,
#           which are -0.25 + 3.5 * 0.25 = 0.625, -0.125 and 3.
# quantile: 1 bit, one block; exponent 0; means -0.25 and 1.75 as float16; symbols 1, 0, 1 = 0x05.
# Huffman:  a codebook, u16 bytes of the stream, the stream. linear's: both codes that occur are 1 bit long,
#           14 (the limit) less 13: 1 1 1 1 and gamma(12) = 0 0 0 1 1 0 0; two symbols do not occur, 1 1 0
#           and gamma(2) = 0 1 0; the same length again, 0. In bytes, lowest bit first: 8f 99 00. The
#           stream has 01 00 = 1 byte: 1, 0, 0 = 0x01. quantile's: 1 1 1 1 0 0 0 1 1 0 0, 0 = 8f 01.
LEVEL_BOOK, FP8_BOOK = "fb e8 51 03 bc 17", "03 16 8f 1e 64 03 c6 1d 7c"
FP8, LINEAR = (
    "08 00 00 00 00 00 00 00 f9",
    "02 00 00 00 02 00 00 00 00 00 80 be 00 00 40 40 00 00 80 3e 00 00 00 00",
)
QUANTILE = "01 00 00 00 00 00 00 00 00 00 b4 00 3f"
FLOATS = "00 00 00 3f 00 00 80 be 00 00 40 40"
VALUES: dict[tuple[Form, str], str] = {
    ("wgt", "raw"): FLOATS,
    ("bgt", "raw"): "",
    ("strom", "raw"): "",
    ("qgt", "raw"): "01 ff 07",
    ("qgt", "huffman"): f"{LEVEL_BOOK} 01 00 19",
    ("f32", "raw"): FLOATS,
    ("fp16", "raw"): "00 38 00 b4 00 42",
    ("bf16", "raw"): "00 3f 80 be 40 40",
    ("fp8", "raw"): f"{FP8} 68 e0 7c",
    ("fp8", "huffman"): f"{FP8} {FP8_BOOK} 01 00 19",
    ("linear", "raw"): f"{LINEAR} 03",
    ("linear", "huffman"): f"{LINEAR} 8f 99 00 01 00 01",
    ("quantile", "raw"): f"{QUANTILE} 05",
    ("quantile", "huffman"): f"{QUANTILE} 8f 01 01 00 05",
}


GOLDEN_VALUES: dict[Form, Any] = {
    "wgt": np.array([0.5, -0.25, 3.0], np.float32),
    "bgt": np.empty(0, np.uint8),
    "strom": np.empty(0, np.uint8),
    "qgt": np.array([1, 255, 7], np.uint8),
    "f32": np.array([0.5, -0.25, 3.0], np.float32),
    "fp16": np.array([0.5, -0.25, 3.0], np.float16).view(np.uint16),
    "bf16": np.array([0x3F00, 0xBE80, 0x4040], np.uint16),
    "fp8": ScaledFloats(8, 0, np.array([0x68, 0xE0, 0x7C], np.uint8), np.array([-7], np.int8)),
    "linear": Uniform(
        2,
        2,
        np.array([3, 0, 0], np.uint8),
        np.array([-0.25, 3], np.float32),
        np.array([0.25, 0], np.float32),
    ),
    "quantile": Quantiles(
        1,
        0,
        np.array([1, 0, 1], np.uint8),
        np.array([0], np.int8),
        np.array([-0.25, 1.75], np.float16).view(np.uint16),
    ),
}
MEANT = {
    "fp8": [0.5, -0.25, 3.0],
    "linear": [0.625, -0.125, 3.0],
    "quantile": [1.75, -0.25, 1.75],
    "bgt": [0.25, -0.25, 0.25],
    "strom": [0.25, -0.25, 0.25],
    "qgt": [0.25, -63.75, 1.75],
}


def golden_update(form: Form, codec: str = "packed32") -> Update:
    """The update that golden messages hold."""
    traits = FORMS[form]
    tau = np.float32(0.25) if traits.has_tau else NO_TAU
    signs = np.array([0, traits.sign_apart or form == "wgt", 0], np.uint32)
    if codec == "every":
        return Update(form, 3, tau, None, GOLDEN_VALUES[form])
    if codec == "chunked":
        words = np.array([1 << 1, 6 << 1, 10 << 1], np.uint32) | signs
        return Update(form, 11, tau, words, GOLDEN_VALUES[form], Chunks(4, 1))
    words = np.array([1 << 1, 2 << 1, 10 << 1], np.uint32) | signs
    return Update(form, 11, tau, words, GOLDEN_VALUES[form])


@in_turn(("form", "codec"), GOLDEN)
def test_golden_messages_are_written_and_read(form: Form, codec: str, assert_same_update: AssertSame) -> None:
    update = golden_update(form)
    golden = bytes.fromhex(GOLDEN[form, codec])
    assert message.write(update, codec).tobytes().hex(" ") == golden.hex(" ")
    found = message.read(np.frombuffer(golden, np.uint8), 11)
    assert isinstance(found, Update)
    assert_same_update(found, update)


def signs_of(form: Form) -> str:
    """Where a form's signs stand."""
    if FORMS[form].sign_apart:
        return "signs apart"
    return "signs with both" if form == "wgt" else "signs in values"


def sections() -> list[tuple[Form, str, str]]:
    """Every combination that can occur, but raw's bodies, which are no sections."""
    return [
        (form, codec, symbols)
        for form, symbols in VALUES
        for codec, signs in POSITIONS
        if signs == signs_of(form)
    ]


@in_turn(("form", "codec", "symbols"), sections())
def test_golden_sections_are_written_and_read(
    form: Form, codec: str, symbols: str, assert_same_update: AssertSame
) -> None:
    update = golden_update(form, codec)
    body = bytes.fromhex(POSITIONS[codec, signs_of(form)] + VALUES[form, symbols])
    codes = [FORMS[form].code, codec_by_name(codec).code, 0, symbols == "huffman", 0]
    tau = 0.25 if FORMS[form].has_tau else 0.0
    head = b"tg\x01" + bytes(codes) + struct.pack("<IIfQ", update.n, 3, tau, len(body))
    golden = head + struct.pack("<I", zlib.crc32(head + bytes(4) + body)) + body
    assert message.write(update, codec, symbols).tobytes().hex(" ") == golden.hex(" ")
    found = message.read(np.frombuffer(golden, np.uint8), update.n)
    assert isinstance(found, Update)
    assert_same_update(found, update)
    assert found.floats().tolist() == MEANT.get(form, [0.5, -0.25, 3.0])


FORM_CODES = {"wgt": 1, "bgt": 2, "qgt": 3, "strom": 4, "f32": 5, "fp16": 6, "bf16": 7, "fp8": 8}
FORM_CODES |= {"linear": 9, "quantile": 10}
CODEC_CODES = {"raw": 0, "packed32": 1, "bitmap": 2, "golomb_rice": 3, "every": 4, "chunked": 5}


def test_codes_never_change() -> None:
    assert {form: traits.code for form, traits in FORMS.items()} == FORM_CODES
    assert {codec.name: codec.code for codec in OURS} == CODEC_CODES


def test_golden_strom_in_raw() -> None:
    """The dense bytes of bgt's golden message under strom's code."""
    body = bytes.fromhex("00 01 ff 00 00 00 00 00 00 00 01")
    written = message.write(golden_update("strom"), "raw").tobytes()
    assert (written[3], written[32:]) == (4, body)
