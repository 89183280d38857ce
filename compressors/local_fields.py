"""The fields of local steps, as `LocalSteps` and a spec have them, and which of them do not go together."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from .methods.base import Method, NoCompression
from .methods.dense import DenseMethod
from .pattern_names import PatternName, pattern_refusals


def _share(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Reads `unsent` with one error for both of its types."""
    try:
        return read(value)
    except ValidationError:
        raise ValueError("must be a number from 0 to 1, or 1/n") from None


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Outer(_Fields):
    """The optimizer of the agreed weights: SGD along the mean of the workers' pseudo-gradients.

    With the defaults, workers continue from the mean of their weights. DiLoCo has lr=0.7, momentum=0.9,
    nesterov=True.
    """

    lr: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Learning rate. 1 applies the workers' mean; DiLoCo uses 0.7."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """DiLoCo uses 0.9."""
    nesterov: bool = False
    """DiLoCo uses it."""


class LocalFields(_Fields):
    """What workers exchange between local steps, and how they continue from it."""

    exchange: Literal["pseudo_gradients", "weights"] = "pseudo_gradients"
    """What is exchanged. pseudo_gradients: how far weights have moved from the last agreed ones, with
    residuals like any gradient (DiLoCo, arXiv 2311.08105). weights: the weights themselves, averaged
    (Oland-Raj)."""
    pattern: PatternName = "allgather"
    """Who sends to whom. parameter_server is Oland-Raj's master. hierarchical is allgather with messages that
    go to each other site once."""
    outer: Outer = Outer()
    """For pseudo-gradients."""
    unsent: Annotated[Annotated[float, Field(ge=0, le=1)] | Literal["1/n"], WrapValidator(_share)] = 0.0
    """The part of its residual that a worker's own weights keep after an exchange. The residual is what the
    worker has learned and not sent yet. 0: all workers continue from the agreed weights. 1/n: divided by
    the number of workers, which is the weight that the residual will have in their mean. 1: all of it, as in
    CSER (arXiv 2007.13221). For pseudo-gradients."""
    delay_steps: int = Field(default=0, ge=0)
    """Steps for which workers train on while what they sent is on its way. It is merged after them."""
    blend: float | None = Field(default=None, ge=0, lt=1)
    """With a delay: the part of its weights that a worker keeps when the agreed ones arrive; the rest is
    theirs (alpha of Streaming DiLoCo). By default a worker keeps the steps that it took meanwhile, whole, on
    top of the agreed weights."""
    offload: bool = False
    """Whether agreed weights, residuals and outer momentum lie in the host's memory in place of the GPU's.
    Updates are then compressed on the CPU."""

    def unsent_share(self, workers: int) -> float:
        """`unsent` as a number, for n workers."""
        return 1 / workers if self.unsent == "1/n" else self.unsent


def local_refusals(
    fields: LocalFields,
    every: int,
    fragments: int,
    method: Method,
    downlink: Method | None,
    *,
    name: str,
    prefix: str = "",
) -> Iterator[str]:
    """Which combinations cannot be: the fields, their values, and what would be valid, a line each.

    Args:
        fields: of the local steps.
        every: steps from one exchange to the next; 0 where they are not counted.
        fragments: how many.
        method: what is sent is compressed with.
        downlink: what sums are compressed with on their way back.
        name: of the method in messages.
        prefix: of the fields' names in messages.
    """
    outer = fields.outer
    momentum = f"{name}.momentum = {method.momentum_correction}"
    if fields.pattern == "collective":
        yield f"{prefix}pattern = collective: it is for gradients; use {prefix}pattern: sharded"
    yield from pattern_refusals(fields.pattern, method, downlink, name, prefix, in_local_steps=True)
    if method.brings_exchange:
        yield f"{name}.kind = {method.kind}: its factors go through torch's own all-reduce, in DDP alone"
    if method.nonfinite == "skip":
        yield f"{name}.nonfinite = skip: weights that are not finite cannot be left out; use refuse"
    if outer.nesterov and not outer.momentum:
        yield f"{prefix}outer.nesterov: needs {prefix}outer.momentum above 0"
    if every and fields.delay_steps >= every:
        yield (
            f"{prefix}delay_steps = {fields.delay_steps} with {prefix}every = {every}: a fragment must have "
            f"arrived before it is sent again; use at most {every - 1}"
        )
    if every and fragments > every:
        at_most = f"at most one a step; use at most {every}"
        yield f"{prefix}fragments = {fragments} with {prefix}every = {every}: {at_most}"
    if fields.blend is not None and not fields.delay_steps:
        yield f"{prefix}blend = {fields.blend}: needs {prefix}delay_steps above 0"
    if method.momentum_correction and outer.momentum:
        twice = "it would be applied twice; use 0 for one"
        yield f"{momentum} with {prefix}outer.momentum = {outer.momentum}: {twice}"
    unsent = f"{prefix}unsent = {fields.unsent}".removesuffix(".0")
    if fields.unsent and fields.pattern == "ring":
        yield (
            f"{unsent} with {prefix}pattern = ring: what a hop leaves out also "
            f"belongs to other workers; use {prefix}unsent: 0, or another pattern"
        )
    if fields.exchange == "weights":
        yield from _refusals_of_weights(fields, method, downlink or method, name, prefix)


def _refusals_of_weights(
    fields: LocalFields, method: Method, downlink: Method, name: str, prefix: str
) -> Iterator[str]:
    weights, other = f"with {prefix}exchange = weights", f"use {prefix}exchange: pseudo_gradients"
    if fields.unsent:
        yield f"{prefix}unsent = {fields.unsent} {weights}: nothing is left for later; {other}"
    for field, kind in {name: method, f"{prefix}downlink": downlink}.items():
        if not isinstance(kind, DenseMethod | NoCompression):
            yield (
                f"{field}.kind = {kind.kind} {weights}: weights that are not sent would count as 0; "
                f"{other}, or a method that sends every element, such as linear or entropy"
            )
    if method.reduction == "sum":
        yield f"{name}.reduction = sum {weights}: a sum of weights is no model; use mean"
    if fields.outer != Outer():
        yield f"{prefix}outer {weights}: there is no pseudo-gradient to step along; {other}"
