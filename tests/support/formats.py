"""Every format that a message can have: which codec writes which form, and messages put together by hand."""

import struct
import zlib

from taugrad.compressors.ops.interface import Form
from taugrad.compressors.wire.forms import GRADIENT_FORMS
from taugrad.compressors.wire.positions import BUILTIN

WITHOUT_TAU: tuple[Form, ...] = ("f32", "fp16", "bf16", "fp8", "linear", "quantile")
FORMS_OF: dict[str, tuple[Form, ...]] = {
    "packed32": GRADIENT_FORMS,
    "golomb_rice": GRADIENT_FORMS,
    "bitmap": GRADIENT_FORMS,
    "raw": ("bgt", "qgt", "strom", "f32"),
    "chunked": WITHOUT_TAU,
    "every": WITHOUT_TAU,
    "drawn": WITHOUT_TAU,
}
"""What each codec can write: raw where a zero says "not sent", chunked and drawn where no sign stands apart;
`every` stands for parameters that are sent whole."""

CODECS = (*(codec.name for codec in BUILTIN), "every")
FORMATS = [(codec, form) for codec in CODECS for form in FORMS_OF[codec]]

FORM_CODE = {"bgt": 2, "qgt": 3, "strom": 4, "f32": 5, "fp16": 6, "bf16": 7, "fp8": 8, "linear": 9}
FORM_CODE |= {"quantile": 10, "steps": 11, "bits": 12, "patch": 13}
CODEC_CODE = {"raw": 0, "packed32": 1, "bitmap": 2, "golomb_rice": 3, "every": 4, "chunked": 5, "drawn": 6}
HUFFMAN, OWN_CODES, OWN_TAUS, REFUSAL = 1, 2, 4, 128
"""Codes and flags of the header, by docs/reference/messages.md; they never change."""


def sealed(data: bytes) -> bytes:
    """The same bytes with the checksum that the docstring of `message` asks for."""
    checksum = zlib.crc32(data[:24] + bytes(4) + data[28:])
    return data[:24] + struct.pack("<I", checksum) + data[28:]


def forged(
    form: int | str,
    codec: int | str,
    n: int,
    k: int,
    body: bytes,
    *,
    tau: float | None = 0.25,
    flags: int = 0,
    bits: int = 0,
    length: int | None = None,
) -> bytes:
    """A message with a valid checksum, whatever it holds; of forms with tau, tau comes before the body."""
    form_code = FORM_CODE[form] if isinstance(form, str) else form
    codec_code = CODEC_CODE[codec] if isinstance(codec, str) else codec
    if form_code in (2, 3, 4) and tau is not None:
        body = struct.pack("<f", tau) + body
    size = len(body) if length is None else length
    head = b"tg" + bytes([2, form_code, codec_code, flags, bits, 0])
    return sealed(head + struct.pack("<IIQI", n, k, size, 0) + body)
