"""Reads a method from its model, its dictionary, or its line; lists the methods, and registers others.

A line is a chain: `wgt(tau=1e-3) | quantile(block=2048) | golomb_rice`.

The first link is a method; a quantizer may follow a sparse one, then the codecs. A link takes its fields
as keywords, its most important one also without. Values are literals, policies or groups of fields:
`wgt(tau=density(0.01, every=10), clip=clip(5, to=3))`.
"""

import ast
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from ..fields import (
    POLICIES,
    QUANTIZERS,
    RULES,
    groups,
    parse_expression,
    problem_line,
    read_call,
    require_known,
)
from ..thresholds.base import Policy
from .base import CompressedMethod, Method, NoCompression, Symbols
from .chunked_topk import ChunkedTopK
from .dense import DenseBFloat16, DenseEntropy, DenseFloat8, DenseFloat16, DenseLinear, DenseQuantile
from .natural import Natural
from .powersgd import PowerSGD
from .qsgd import QSGD, TernGrad
from .quantizers import Quantizer
from .random_k import RandomK
from .sign import Sign
from .threshold import BinarizedGradient, QuantizedGradient, Strom, WholeGradient
from .topk import TopK
from .visible import Visible, VisibleStrom

RULES.add_builtin(
    *(NoCompression, PowerSGD, WholeGradient, BinarizedGradient, QuantizedGradient, Strom, TopK, ChunkedTopK),
    *(DenseLinear, DenseQuantile, DenseEntropy, DenseFloat16, DenseBFloat16, DenseFloat8, Sign),
    *(QSGD, TernGrad, Natural, RandomK, Visible, VisibleStrom),
)
_CODECS = ("raw", "packed32", "bitmap", "golomb_rice", "chunked", "drawn")
"""The codecs of positions."""
_SYMBOL_CODECS = [name for name in get_args(Symbols) if name != "auto"]
C = TypeVar("C", bound=type)


def register(added: C) -> C:
    """Adds a method, quantizer or threshold policy under its name; a decorator of its class.

    A class of the same address, of a module that is imported again, replaces the one before.

    Args:
        added: a subclass of `CompressedMethod` (mostly of `SparseMethod`), `Quantizer` or `Policy`.

    Raises:
        TypeError: it is none of these.
        ValueError: its name is taken; or the class lacks something, which the message names.
    """
    for base, family in ((CompressedMethod, RULES), (Quantizer, QUANTIZERS), (Policy, POLICIES)):
        if isinstance(added, type) and issubclass(added, base):
            family.add(added)
            return added
    raise TypeError(f"{added!r}: must be a subclass of CompressedMethod, Quantizer or Policy")


def parse(text: str) -> dict[str, Any]:
    """The configuration of a chain, as a dictionary that the models validate.

    Raises ValueError where it is no chain, a name is unknown, or links do not fit together.
    """
    return join(links_of(text))


def links_of(text: str) -> list[dict[str, Any] | str]:
    """The links of a line, for `join`. Raises ValueError where it is no chain, or a name is unknown."""
    tree = parse_expression(text)
    if tree is None:
        shown = text if len(text) < 60 else f"{text[:57]}..."
        raise ValueError(f"{shown!r} is not a chain such as wgt(tau=1e-3) | golomb_rice")
    return [_link(node) for node in _in_order(tree)]


def join(links: Sequence[dict[str, Any] | str]) -> dict[str, Any]:
    """The configuration of a method, a quantizer and codecs, in this order; ValueError if they don't fit."""
    head = links[0]
    if _name(head) not in RULES or isinstance(head, str):
        raise ValueError(f"a chain starts with a method ({', '.join(RULES)}), not with {_name(head)}")
    config, method = dict(head), RULES[head["kind"]]
    fields = method.model_fields
    last = 0  # 1 once a quantizer was met, 2 after the codec of positions, 3 after that of symbols
    for before, link in pairwise(links):
        if isinstance(link, dict):
            place, field = _quantizer_place(method, link["kind"], _name(before)), "quantize"
        else:
            place, field = _codec_place(config["kind"], fields, link, last)
        if place <= last:
            raise ValueError(
                f"{_name(link)} cannot follow {_name(before)}: a chain is a method, a quantizer, a codec of "
                "positions and one of symbols, in this order and at most one of each"
            )
        if field in config:
            raise ValueError(f"{field} is given twice: as a field of {config['kind']} and as {_name(link)}")
        config[field], last = link, place
    return config


def _name(link: dict[str, Any] | str) -> str:
    return link if isinstance(link, str) else str(link["kind"])


def _quantizer_place(method: type[Method], quantizer: str, before: str) -> int:
    if quantizer not in QUANTIZERS:
        raise ValueError(f"{quantizer} starts a chain and cannot follow {before}")
    if "quantize" not in method.model_fields:
        raise ValueError(method.quantizer_error(quantizer))
    return 1


def _codec_place(kind: str, fields: Any, name: str, last: int) -> tuple[int, str]:
    """The place of a codec, and its field. The model checks whether it can encode the values."""
    if name in _CODECS and "codec" in fields and not (name == "raw" and last >= 2):
        allowed = [codec for codec in get_args(fields["codec"].annotation) if codec != "auto"]
        if name in _CODECS and name not in allowed:
            lacking = f"{kind} has no chunks for {name} to count in" if name == "chunked" else ""
            raise ValueError(f"{lacking or f'{name} cannot follow {kind}'}: choose {', '.join(allowed)}")
        return 2, "codec"
    if name in _SYMBOL_CODECS and "symbols" in fields:
        return 3, "symbols"
    if "codec" in fields:
        raise ValueError(f"{name} encodes symbols, but {kind} sends none")
    if "symbols" in fields:
        raise ValueError(f"{name} encodes positions, but {kind} sends every element and has none")
    raise ValueError(f"{kind} has only one form: {name} cannot follow it")


def _in_order(tree: ast.expr) -> list[ast.expr]:
    links: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        links.append(tree.right)
        tree = tree.left
    return [tree, *reversed(links)]


def _link(node: ast.expr) -> dict[str, Any] | str:
    called = node.func if isinstance(node, ast.Call) else node
    if not isinstance(called, ast.Name):
        raise ValueError(f"{ast.unparse(node)} is not a link of a chain")
    name = called.id
    heads = RULES if name in RULES else QUANTIZERS
    if name in heads:
        return read_call(node, heads) if isinstance(node, ast.Call) else {"kind": name}
    if name in _CODECS or name in _SYMBOL_CODECS:
        if isinstance(node, ast.Call):
            raise ValueError(f"{name} has no fields")
        return name
    if name in POLICIES or name in groups():
        raise ValueError(f"{name} is not a link, but a value in a link's brackets: wgt(tau=density(0.01))")
    return require_known(name, list(dict.fromkeys((*RULES, *QUANTIZERS, *_CODECS, *_SYMBOL_CODECS))))


def expand(value: Any) -> Any:
    """Parses a line; returns anything else as it is."""
    return parse(value) if isinstance(value, str) else value


if TYPE_CHECKING:
    CompressorConfig = Method
else:
    CompressorConfig = Annotated[RULES.union(), BeforeValidator(expand)]
    """Any compressor; `kind` tells which. A string is read as a chain."""

_ADAPTER: TypeAdapter[Method] = TypeAdapter(CompressorConfig)


def read_config(value: Any) -> Method:
    """A method from its model, its dictionary or its line; ValueError names what is wrong."""
    try:
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        raise ValueError(problem_line(error)) from None


def chain(*links: BaseModel | str) -> Method:
    """A method from its links, in their order.

    `chain(WholeGradient(tau=1e-3), Quantile(), "golomb_rice")` is
    `chain("wgt(tau=1e-3) | quantile | golomb_rice")`: links are models, codecs' names, or text as in a line.

    Raises:
        ValueError: they cannot be combined, or a field is not valid; a line says which, and what is valid.
    """
    if not links:
        raise ValueError("a chain without links")
    return read_config(join([part for link in links for part in _links(link)]))


def _links(link: BaseModel | str) -> list[dict[str, Any] | str]:
    if isinstance(link, str):
        return links_of(link)
    return [
        {"kind": getattr(link, "kind", None)} | {name: getattr(link, name) for name in link.model_fields_set}
    ]
