"""Threshold policies: how tau is found, apart from what is done with it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from .base import Settings, Share, Tau
from .calls import expand_policy
from .law import LawTau


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
    every: int = Field(default=100, ge=1)
    """Iterations from one sample to the next; in between tau is corrected by what was sent."""
    warmup: Warmup | None = None
    """Begin with a higher density."""

    @model_validator(mode="after")
    def _falling(self) -> "DensityTau":
        check_falling(self.target, self.warmup)
        return self


class FittedTau(Settings):
    """The tau that a target share reaches if magnitudes are distributed as a fit to a sample says (SIDCo)."""

    kind: Literal["sidco"] = "sidco"
    target: Share
    """The share of elements to send."""
    fit: Literal["exponential", "pareto", "gamma"] = "exponential"
    """The distribution; gamma's further stages are generalized Pareto's."""
    stages: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = "auto"
    """How often the tail is fitted again, each time its upper quarter; auto adapts to the achieved share."""
    every: int = Field(default=200, ge=1)
    """Iterations from one fit to the next; in between tau is corrected by what was sent."""


class Dl4jTau(Settings):
    """DL4J's rules: one tau for all parameters, a step up or down where the share sent leaves a range."""

    kind: Literal["dl4j"] = "dl4j"
    start: Tau = 1e-3
    """The first tau."""
    low: Share = 1e-4
    """Below this share of all elements tau goes down."""
    high: Share = 1e-2
    """Above this share it goes up."""
    target: Share | None = None
    """Steps toward this share in place of a range: DL4J's target sparsity."""
    decay: float = Field(default=0.5 ** (1 / 20), gt=0, lt=1)
    """A step: tau is multiplied or divided by it."""

    @model_validator(mode="after")
    def _ascending(self) -> "Dl4jTau":
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} is above high = {self.high:g}")
        return self


class AllocatedTau(Settings):
    """A tau for each layer: together they take the fewest bits at the error that one tau would have."""

    kind: Literal["allocate"] = "allocate"
    density: Share
    """The error budget: what one tau for all layers leaves unsent when it sends this share of elements."""
    every: int = Field(default=400, ge=1)
    """Iterations from one allocation to the next; in between each tau is corrected by what was sent."""


def _kind(value: Any) -> Any:
    """Which of a number and the policies a value wants to be."""
    if isinstance(value, dict):
        return value.get("kind")
    return getattr(value, "kind", "number")


_Number = Annotated[Tau, Tag("number")]
_Scheduled = Annotated[ScheduledTau, Tag("schedule")]
_Density = Annotated[DensityTau, Tag("density")]
_Fitted = Annotated[FittedTau, Tag("sidco")]
LayerChoice = Annotated[
    Annotated[_Number | _Scheduled | _Density | _Fitted, Discriminator(_kind)], BeforeValidator(expand_policy)
]
"""Those that decide for each parameter by itself."""


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


_Layered = Annotated[LayeredTau, Tag("layers")]
_Dl4j = Annotated[Dl4jTau, Tag("dl4j")]
_Allocated = Annotated[AllocatedTau, Tag("allocate")]
_Law = Annotated[LawTau, Tag("law")]
Threshold = Annotated[
    Annotated[
        _Number | _Scheduled | _Density | _Fitted | _Dl4j | _Allocated | _Law | _Layered,
        Discriminator(_kind),
    ],
    BeforeValidator(expand_policy),
]
"""A number, which is fixed, or a policy."""
