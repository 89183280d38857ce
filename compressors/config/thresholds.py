"""Threshold policies: how tau is found, apart from what is done with it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from .base import Settings, Share, Tau
from .calls import expand_policy


class ScheduledTau(Settings):
    """tau by iteration: given at some, kept or interpolated between them."""

    kind: Literal["schedule"] = "schedule"
    points: dict[int, Tau] = Field(min_length=1)
    """tau at iterations counted from 0, such as {0: 1e-4, 1000: 1e-3}; the first and last hold outside."""
    between: Literal["step", "linear", "exponential"] = "exponential"
    """From one point to the next: jump there, or go on a straight line in tau or in its logarithm."""

    @field_validator("points")
    @classmethod
    def _from_zero_on(cls, points: dict[int, float]) -> dict[int, float]:
        if min(points) < 0:
            raise ValueError(f"iterations count from 0, {min(points)} is before that")
        return dict(sorted(points.items()))


class Warmup(Settings):
    """A density that starts high and falls exponentially (Deep Gradient Compression, section 3.3)."""

    iterations: int = Field(gt=0)
    """How long it takes."""
    start: Share = 0.25
    """The density of the first stage."""
    stages: int = Field(default=4, ge=1, le=1000)
    """Steps from the first density to the last; Deep Gradient Compression takes one an epoch, four in all."""


def check_falling(density: float, warmup: Warmup | None) -> None:
    """Refuses (ValueError) a warm-up that would begin below the density it leads to."""
    if warmup is not None and warmup.start < density:
        raise ValueError(
            f"a warm-up begins high: its start {warmup.start:g} is below the density {density:g}"
        )


class DensityTau(Settings):
    """The tau that about a target share of a layer's elements reaches: a magnitude of a sample of them."""

    kind: Literal["density"] = "density"
    target: Share
    """The share of elements to send."""
    every: int = Field(default=1, ge=1)
    """Iterations that a tau is kept before the next sample is taken."""
    warmup: Warmup | None = None
    """Begin with a higher density."""

    @model_validator(mode="after")
    def _falling(self) -> "DensityTau":
        check_falling(self.target, self.warmup)
        return self


def _kind(value: Any) -> Any:
    """Which of a number and the policies a value wants to be."""
    if isinstance(value, dict):
        return value.get("kind")
    return getattr(value, "kind", "number")


_Number = Annotated[Tau, Tag("number")]
_Scheduled = Annotated[ScheduledTau, Tag("schedule")]
_Density = Annotated[DensityTau, Tag("density")]
LayerChoice = Annotated[
    Annotated[_Number | _Scheduled | _Density, Discriminator(_kind)], BeforeValidator(expand_policy)
]


class LayeredTau(Settings):
    """tau by parameter name."""

    kind: Literal["layers"] = "layers"
    default: LayerChoice
    """For parameters that no pattern fits."""
    patterns: dict[str, LayerChoice] = Field(min_length=1)
    """By name pattern, such as {"conv*": 1e-3}; the first that fits counts."""

    def __eq__(self, other: object) -> bool:
        in_order = isinstance(other, LayeredTau) and list(self.patterns) == list(other.patterns)
        return in_order and super().__eq__(other)

    __hash__ = Settings.__hash__


ThresholdPolicy = ScheduledTau | DensityTau | LayeredTau
_Layered = Annotated[LayeredTau, Tag("layers")]
Threshold = Annotated[
    Annotated[_Number | _Scheduled | _Density | _Layered, Discriminator(_kind)],
    BeforeValidator(expand_policy),
]
"""A number, which is fixed, or a policy."""
