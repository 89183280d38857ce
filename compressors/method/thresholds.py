"""What a threshold can be: a number, which is fixed, or a policy."""

from collections.abc import Mapping
from typing import Annotated, Any, Union

from pydantic import BeforeValidator, Discriminator, Tag

from .base import Tau
from .calls import expand
from .registry import POLICIES


def threshold_of(policies: Mapping[str, Any]) -> Any:
    """The type of a field that takes a number, one of some policies of ours, or another package's.

    Args:
        policies: by kind.
    """
    tagged = [Annotated[policy, Tag(kind)] for kind, policy in policies.items()]
    union: Any = Union[(Annotated[Tau, Tag("number")], *tagged)]
    read = POLICIES.extended(Annotated[union, Discriminator(_kind)])
    return Annotated[read, BeforeValidator(lambda value: expand(value, POLICIES))]


def _kind(value: Any) -> Any:
    """Which of a number and the policies a value wants to be."""
    if isinstance(value, dict):
        return value.get("kind")
    return getattr(value, "kind", "number")
