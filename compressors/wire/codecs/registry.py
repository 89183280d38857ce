"""Every codec, by name and by code."""

from ...errors import CorruptMessage
from .base import Codec
from .bitmap import Bitmap
from .chunked import Chunked
from .every import Every
from .golomb_rice import GolombRice
from .packed32 import Packed32
from .raw import Raw

CODECS: tuple[Codec, ...] = (Packed32(), GolombRice(), Bitmap(), Raw(), Chunked(), Every())
_BY_NAME = {codec.name: codec for codec in CODECS}
_BY_CODE = {codec.code: codec for codec in CODECS}


def codec_by_name(name: str) -> Codec:
    """The codec of that name; KeyError when there is none."""
    return _BY_NAME[name]


def codec_by_code(code: int) -> Codec:
    """The codec whose code a message carries.

    Raises:
        CorruptMessage: no codec has it.
    """
    try:
        return _BY_CODE[code]
    except KeyError:
        raise CorruptMessage(f"codec {code} is unknown; known are {sorted(_BY_CODE)}") from None
