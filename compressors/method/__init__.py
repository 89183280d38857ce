"""The fields of methods, quantizers, policies and codecs: pydantic models, in YAML, JSON and Python.

    CompressorConfig   any method, from its model, its dictionary, or its line
    chain              a method from its links, or from its line

Nothing here computes: reading fields needs neither torch nor NumPy. What works by them is in `rules`,
`quantizers`, `tau` and `wire`.
"""

from .base import LARGEST_TAU, SMALLEST_TAU
from .links import CompressorConfig, chain, read_config
from .methods import CompressedMethod, Method, NoCompression, PowerSGD
from .sparse import BinarizedGradient, QuantizedGradient, Strom, WholeGradient

__all__ = [
    "LARGEST_TAU",
    "SMALLEST_TAU",
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
]
