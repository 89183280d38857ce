"""A number that follows from a run's first gradients, in place of one that is given."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from .base import Settings
from .calls import FLOORS, expand_policy

LOWEST_FLOOR, HIGHEST_FLOOR = -16.0, 16.0
Weight = Annotated[float, Field(ge=-100, le=100)]


class Law(Settings):
    """constant + sum of weights x features of all gradients of the first iteration.

    The features are natural logarithms, see `compressors.tau.law`. Weights are of past runs: `taugrad law`.
    """

    kind: Literal["law"] = "law"
    constant: Weight
    """What the run as a whole adds: its batch, learning rate, workers."""
    rms: Weight = 0.0
    """Weight of ln(root mean square)."""
    p99: Weight = 0.0
    """Weight of ln(99th percentile of magnitudes / root mean square)."""
    p999: Weight = 0.0
    """Weight of ln(99.9th percentile / root mean square)."""
    layer: Weight = 0.0
    """Weight of ln(elements of a layer)."""


class LawTau(Law):
    """The natural logarithm of tau by a law; one tau for all layers."""

    rms: Weight = 1.0
    """Weight of ln(root mean square): with 1, tau is a multiple of it."""


class LawFloor(Law):
    """Oland-Raj's floor c by a law, at least -16 and at most 16."""


def _kind(value: Any) -> str:
    return "law" if isinstance(value, dict | Law) else "number"


_Number = Annotated[float, Field(ge=LOWEST_FLOOR, le=HIGHEST_FLOOR), Tag("number")]
_Law = Annotated[LawFloor, Tag("law")]
Floor = Annotated[
    Annotated[_Number | _Law, Discriminator(_kind)],
    BeforeValidator(lambda value: expand_policy(value, FLOORS)),
]
"""A number, or a law."""
