"""The configuration of a compressor as data: pydantic models, in YAML, JSON and Python.

    CompressorConfig   any method, from its model, its dictionary, or its line
    chain              a method from its links, or from its line

Importing this package is cheap (no torch, no numba), so that command lines and spec readers start fast. Names
are loaded when they are first used: methods import what they have in common from here.
"""

from typing import TYPE_CHECKING

from ..lazy import export_lazily

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

if TYPE_CHECKING:
    from ..rules.bgt import BinarizedGradient
    from ..rules.qgt import QuantizedGradient
    from ..rules.strom import Strom
    from ..rules.wgt import WholeGradient
    from .base import LARGEST_TAU, SMALLEST_TAU
    from .compressor import CompressorConfig, chain, read_config
    from .methods import CompressedMethod, Method, NoCompression, PowerSGD
else:
    __getattr__ = export_lazily(
        __name__,
        {
            "LARGEST_TAU": ".base",
            "SMALLEST_TAU": ".base",
            "BinarizedGradient": "..rules.bgt",
            "CompressedMethod": ".methods",
            "CompressorConfig": ".compressor",
            "Method": ".methods",
            "NoCompression": ".methods",
            "PowerSGD": ".methods",
            "QuantizedGradient": "..rules.qgt",
            "Strom": "..rules.strom",
            "WholeGradient": "..rules.wgt",
            "chain": ".compressor",
            "read_config": ".compressor",
        },
    )
