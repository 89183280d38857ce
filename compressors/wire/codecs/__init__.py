"""Lossless codecs: encode an update's positions, signs and values, and decode them."""

from .base import Codec
from .registry import OURS, codec_by_code, codec_by_name
from .values import PlannedValues, plan_values

__all__ = [
    "OURS",
    "Codec",
    "PlannedValues",
    "codec_by_code",
    "codec_by_name",
    "plan_values",
]
