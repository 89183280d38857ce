"""The fields of threshold policies: how tau is chosen, and changes during a run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from .base import Group, Settings, Share, Tau
from .calls import expand
from .registry import POLICIES


class Policy(Settings):
    """The fields of a threshold policy, `kind` among them."""

    needs: ClassVar[Mapping[str, str]] = {"decides": "a ThresholdPolicy"}
    kind: str
    decides: ClassVar[str | type]
    """The `tau.base.ThresholdPolicy`, or its address."""
    by_itself: ClassVar[bool] = False
    """Whether it decides for each parameter separately, so that `layers` may use it for some of them: it
    makes no joint decision, and has no memory of all parameters together."""


class Warmup(Group):
    """A density that starts high and falls exponentially (Deep Gradient Compression, section 3.3)."""

    first_field = "iterations"

    iterations: int = Field(gt=0)
    """Length of the warm-up in iterations."""
    start: Share = 0.25
    """The density of the first stage."""
    stages: int = Field(default=4, ge=1, le=1000)
    """Number of stages. Deep Gradient Compression has four, of one epoch each."""


def check_falling(density: float, warmup: Warmup | None) -> None:
    """Refuses (ValueError) a warm-up that would begin below the density it leads to."""
    if warmup is not None and warmup.start < density:
        raise ValueError(
            f"a warm-up starts high: its start {warmup.start:g} is below the density {density:g}"
        )


class ScheduledTau(Policy):
    """tau by iteration: given at some, kept or interpolated between them."""

    first_field = "points"
    by_itself = True
    decides = "taugrad.compressors.tau.given:Scheduled"

    kind: Literal["schedule"] = "schedule"
    points: dict[int, Tau] = Field(min_length=1)
    """tau at iterations, counted from 0, such as {0: 1e-4, 1000: 1e-3}. Before the first and after the last,
    tau is constant."""
    between: Literal["step", "linear", "exponential"] = "exponential"
    """From one point to the next: a step, or a straight line in tau or in its logarithm."""

    @field_validator("points")
    @classmethod
    def _from_zero_on(cls, points: dict[int, float]) -> dict[int, float]:
        if min(points) < 0:
            raise ValueError(f"iterations count from 0, {min(points)} is before that")
        return dict(sorted(points.items()))


class DensityTau(Policy):
    """The tau that about a target share of a layer's elements reach, found as a magnitude in a sample."""

    first_field = "target"
    aims = by_itself = True
    decides = "taugrad.compressors.tau.density:Density"

    kind: Literal["density"] = "density"
    target: Share
    """The share of elements to send."""
    every: int = Field(default=100, ge=1)
    """Iterations from one sample to the next. In between, tau is corrected by what was sent."""
    warmup: Warmup | None = None
    """Start with a higher density."""

    @model_validator(mode="after")
    def _falling(self) -> "DensityTau":
        check_falling(self.target, self.warmup)
        return self


class FittedTau(Policy):
    """The tau that a target share reaches if magnitudes are distributed as a fit to a sample says (SIDCo)."""

    first_field = "target"
    by_itself = True
    decides = "taugrad.compressors.tau.sidco:Fitted"

    kind: Literal["sidco"] = "sidco"
    target: Share
    """The share of elements to send."""
    fit: Literal["exponential", "pareto", "gamma"] = "exponential"
    """The distribution that is fitted; after the first stage, gamma uses generalized Pareto."""
    stages: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = "auto"
    """Number of stages; each one fits the upper quarter of the last. auto adapts it to the density that was
    sent."""
    every: int = Field(default=200, ge=1)
    """Iterations from one fit to the next; in between tau is corrected by what was sent."""


class Dl4jTau(Policy):
    """DL4J's rules: one tau for all parameters, with a step up or down if the share sent leaves a range."""

    first_field = "start"
    decides = "taugrad.compressors.tau.dl4j:Dl4j"

    kind: Literal["dl4j"] = "dl4j"
    start: Tau = 1e-3
    """The first tau."""
    low: Share = 1e-4
    """If a smaller share of all elements was sent, tau is decreased."""
    high: Share = 1e-2
    """If a larger share was sent, tau is increased."""
    target: Share | None = None
    """Steps toward this share instead of a range: DL4J's target sparsity."""
    decay: float = Field(default=0.5 ** (1 / 20), gt=0, lt=1)
    """The factor by which tau is multiplied or divided."""

    @model_validator(mode="after")
    def _ascending(self) -> "Dl4jTau":
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} is above high = {self.high:g}")
        return self


class AllocatedTau(Policy):
    """A tau for each layer: together they take the fewest bits at the error that one tau would have."""

    first_field = "density"
    aims = True
    decides = "taugrad.compressors.tau.allocation:Allocated"

    kind: Literal["allocate"] = "allocate"
    density: Share
    """The error budget: the error that one tau for all layers would have at this density."""
    every: int = Field(default=400, ge=1)
    """Iterations from one allocation to the next. In between, each tau is corrected by what was sent."""


def threshold_of(policies: Mapping[str, Any]) -> Any:
    """The type of a field that takes a number, one of these policies (by kind), or a registered one."""
    tagged = [Annotated[policy, Tag(kind)] for kind, policy in policies.items()]
    union: Any = Union[(Annotated[Tau, Tag("number")], *tagged)]
    read = POLICIES.extended(Annotated[union, Discriminator(_kind)])
    return Annotated[read, BeforeValidator(lambda value: expand(value, POLICIES))]


def _kind(value: Any) -> Any:
    """The tag of a value: number, or the kind of a policy."""
    if isinstance(value, dict):
        return value.get("kind")
    return getattr(value, "kind", "number")


if TYPE_CHECKING:
    _Layer = float | Policy
else:
    _Layer = threshold_of({"schedule": ScheduledTau, "density": DensityTau, "sidco": FittedTau})


class LayeredTau(Policy):
    """tau by parameter name."""

    first_field = "default"
    decides = "taugrad.compressors.tau.given:Layered"

    kind: Literal["layers"] = "layers"
    default: _Layer
    """tau of parameters that match no pattern."""
    patterns: dict[str, _Layer] = Field(min_length=1)
    """tau by name pattern, such as {"conv*": 1e-3}; the first match counts."""

    def __eq__(self, other: object) -> bool:
        in_order = isinstance(other, LayeredTau) and list(self.patterns) == list(other.patterns)
        return in_order and super().__eq__(other)

    __hash__ = Policy.__hash__

    @field_validator("default", "patterns")
    @classmethod
    def _by_themselves(cls, chosen: Any) -> Any:
        for tau in chosen.values() if isinstance(chosen, dict) else (chosen,):
            if isinstance(tau, Policy) and not tau.by_itself:
                raise ValueError(f"{tau.kind} decides for all parameters together, it cannot be one layer's")
        return chosen


POLICIES.add_builtin(ScheduledTau, DensityTau, FittedTau, Dl4jTau, AllocatedTau, LayeredTau)
