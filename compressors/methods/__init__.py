"""Compression methods. A file has a method's fields, pydantic models, and its work by them.

    CompressorConfig   any method, from its model, its dictionary, or its line
    chain              a method from its links, or from its line

Reading a method needs neither torch nor numba: passes are called through the `Ops` that are handed in.
"""

from .base import CompressedMethod, Method, NoCompression
from .parsing import CompressorConfig, chain, read_config, register
from .powersgd import PowerSGD
from .threshold import BinarizedGradient, QuantizedGradient, Strom, WholeGradient

__all__ = [
    "BinarizedGradient",
    "CompressedMethod",
    "CompressorConfig",
    "Method",
    "NoCompression",
    "PowerSGD",
    "QuantizedGradient",
    "Strom",
    "WholeGradient",
    "chain",
    "read_config",
    "register",
]
