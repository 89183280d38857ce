"""The base of every part's own configuration."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Strict and immutable; the docstring under a field is its description in `--help`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
