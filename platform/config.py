"""The base of every part's own configuration."""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Strict and immutable; the docstring under a field is its description in `--help`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a model's fields, each on one line, by the field's name.

    Read from the source when help or a message needs them: pydantic's `use_attribute_docstrings` would read
    them whenever a class is made, which took a quarter of a command's start.
    """
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        try:
            (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
        except (OSError, TypeError):  # a class without a source
            continue
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
    return found
