"""A method's configuration written as one line, which `links.py` reads."""

from collections.abc import Sequence
from typing import Any

from .base import Settings


def line(config: Settings, quantize: Settings | None, codec: str, symbols: str) -> str:
    """A method as a chain on one line; fields with their default value are left out.

    Args:
        config: the method.
        quantize: its quantizer, which is a link of its own.
        codec: of its positions, or `auto`.
        symbols: the codec of its symbols, or `auto`.
    """
    fields = type(config).model_fields
    links = [_call_text(config, leaving_out=("quantize", "codec", "symbols"))]
    default = fields["quantize"].default if "quantize" in fields else None
    if quantize is not None and quantize != default:
        links.append(_call_text(quantize))
    elif quantize is None and default is not None:
        links[0] = _with_field(links[0], "quantize=None")
    if codec != "auto":
        links.append(codec)
    if symbols == "raw" and codec == "auto" and "codec" in fields:
        links[0] = _with_field(links[0], "symbols='raw'")  # alone it would be read as the codec of positions
    elif symbols != "auto":
        links.append(symbols)
    return " | ".join(links)


def _with_field(call: str, field: str) -> str:
    return f"{call[:-1]}, {field})" if call.endswith(")") else f"{call}({field})"


def _call_text(model: Settings, leaving_out: Sequence[str] = ()) -> str:
    given = []
    fields = type(model).model_fields
    for name in sorted(fields, key=lambda name: name != model.first_field):  # the others stay in their order
        info, value = fields[name], getattr(model, name)
        if name == "kind" or name in leaving_out or value == info.default:
            continue
        given.append(f"{name}={_value_text(value)}")
    kind = model.line_name()
    return f"{kind}({', '.join(given)})" if given else kind


def _value_text(value: Any) -> str:
    if isinstance(value, Settings):
        text = _call_text(value)
        return text if text.endswith(")") else f"{text}()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value_text(each)}" for key, each in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)
