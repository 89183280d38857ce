"""What a compressor does, as data: the pydantic models are the configuration, in YAML, JSON and Python.

    CompressorConfig   any method, from its model, its dictionary, or its line
    chain              a method from its links, or from its line

Importing this package is cheap (no torch, no numba), so that command lines and spec readers start fast.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, TypeAdapter

from .base import LARGEST_TAU, SMALLEST_TAU
from .chain import expand, join, links_of
from .methods import (
    AnyMethod,
    BinarizedGradient,
    CompressedMethod,
    MethodUnion,
    NoCompression,
    PowerSGD,
    QuantizedGradient,
    Strom,
    WholeGradient,
)

CompressorConfig = Annotated[MethodUnion, BeforeValidator(expand)]
"""Any compressor; `kind` tells which. A string is read as a chain."""

_ADAPTER: TypeAdapter[AnyMethod] = TypeAdapter(CompressorConfig)


def read_config(value: Any) -> AnyMethod:
    """The method that a model, a dictionary or a line stands for.

    Raises:
        pydantic.ValidationError: it is none; the message names the field or the link.
    """
    return _ADAPTER.validate_python(value)


def chain(*links: BaseModel | str) -> AnyMethod:
    """One method from its links in their order.

    `chain(WholeGradient(tau=1e-3), QuantileLink(), "golomb_rice")` is
    `chain("wgt(tau=1e-3) | quantile | golomb_rice")`.

    Args:
        links: a method's model, perhaps a quantizer's, then names of codecs; or text as in a line.

    Raises:
        ValueError: they do not fit one another (pydantic.ValidationError where a field is at fault).
    """
    if not links:
        raise ValueError("a chain without links")
    return read_config(join([each for link in links for each in _links(link)]))


def _links(link: BaseModel | str) -> list[dict[str, Any] | str]:
    if isinstance(link, str):
        return links_of(link)
    return [
        {"kind": getattr(link, "kind", None)} | {name: getattr(link, name) for name in link.model_fields_set}
    ]


__all__ = [
    "LARGEST_TAU",
    "SMALLEST_TAU",
    "AnyMethod",
    "BinarizedGradient",
    "CompressedMethod",
    "CompressorConfig",
    "NoCompression",
    "PowerSGD",
    "QuantizedGradient",
    "Strom",
    "WholeGradient",
    "chain",
    "read_config",
]
