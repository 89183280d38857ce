"""Lossless codecs: an update's positions, signs and values as bytes and back."""

from .base import Codec
from .bitmap import Bitmap
from .packed32 import Packed32
from .raw import Raw
from .registry import CODECS, codec_by_code, codec_by_name, smallest

__all__ = [
    "CODECS",
    "Bitmap",
    "Codec",
    "Packed32",
    "Raw",
    "codec_by_code",
    "codec_by_name",
    "smallest",
]
