"""A method's configuration written as one line, which `chain.py` reads."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from .calls import FIRST_FIELD


def line(config: BaseModel) -> str:
    """The line that stands for a method: fields that have their default are left out."""
    links = [_call_text(config, leaving_out=("quantize", "codec", "symbols"))]
    quantize, codec = getattr(config, "quantize", None), getattr(config, "codec", "auto")
    symbols = getattr(config, "symbols", "auto")
    default = (
        type(config).model_fields["quantize"].default if "quantize" in type(config).model_fields else None
    )
    if quantize is not None and quantize != default:
        links.append(_call_text(quantize))
    elif quantize is None and default is not None:
        links[0] = _with_field(links[0], "quantize=None")
    if codec != "auto":
        links.append(codec)
    if symbols == "raw" and codec == "auto" and "codec" in type(config).model_fields:
        links[0] = _with_field(links[0], "symbols='raw'")  # alone it would be read as the codec of positions
    elif symbols != "auto":
        links.append(symbols)
    return " | ".join(links)


def _with_field(call: str, field: str) -> str:
    return f"{call[:-1]}, {field})" if call.endswith(")") else f"{call}({field})"


def _call_text(model: BaseModel, leaving_out: Sequence[str] = ()) -> str:
    kind = getattr(model, "kind", type(model).__name__.lower())
    given = []
    fields = type(model).model_fields
    first = FIRST_FIELD.get(kind)
    for name in sorted(fields, key=lambda name: name != first):  # the others stay in their order
        info, value = fields[name], getattr(model, name)
        if name == "kind" or name in leaving_out or value == info.default:
            continue
        given.append(f"{name}={_value_text(value)}")
    return f"{kind}({', '.join(given)})" if given else kind


def _value_text(value: Any) -> str:
    if isinstance(value, BaseModel):
        text = _call_text(value)
        return text if text.endswith(")") else f"{text}()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value_text(each)}" for key, each in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)
