"""Any compressor: read from its model, its dictionary, or its line."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, TypeAdapter

from .links import expand, join, links_of
from .methods import Method
from .registry import RULES

if TYPE_CHECKING:
    CompressorConfig = Method
else:
    CompressorConfig = Annotated[RULES.choice(), BeforeValidator(expand)]
    """Any compressor; `kind` tells which. A string is read as a chain."""

_ADAPTER: TypeAdapter[Method] = TypeAdapter(CompressorConfig)


def read_config(value: Any) -> Method:
    """The method that a model, a dictionary or a line stands for.

    Raises:
        pydantic.ValidationError: it is none; the message names the field or the link.
    """
    return _ADAPTER.validate_python(value)


def chain(*links: BaseModel | str) -> Method:
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
