"""Every codec, by name and by code, and the choice between them."""

from collections.abc import Iterable

from ..errors import CorruptMessage
from ..kernels.threshold import ThresholdRule
from .base import Codec
from .bitmap import Bitmap
from .packed32 import Packed32
from .raw import Raw

CODECS: tuple[Codec, ...] = (Packed32(), Bitmap(), Raw())
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


def smallest(rule: ThresholdRule, n: int, k: int, among: Iterable[Codec] = CODECS) -> Codec:
    """The codec with the shortest body for k of n elements; the first of several."""
    return min(among, key=lambda codec: codec.size(rule, n, k))
