"""Methods and models that are written as one line instead of fields."""

from collections.abc import Mapping
from typing import Any

from taugrad.compressors.method.links import parse as parse_chain

from ..models import config as models
from .errors import SpecError
from .fields import METHOD


def spelled_out(tree: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A spec's fields with those that lines stand for, so that they can be changed one by one.

    Args:
        tree: fields by name; `compressor` may be a chain, `model` timm:NAME.
        source: where it comes from, for messages.

    Raises:
        SpecError: the method's line is no chain.
    """
    tree = {**tree}
    if "model" in tree:
        tree["model"] = models.spelled_out(tree["model"])
    if isinstance(line := tree.get(METHOD), str):
        try:
            tree[METHOD] = parse_chain(line)
        except ValueError as error:
            raise SpecError(source, [f"{METHOD} = {line}: {error}"]) from None
    return tree
