"""The interface of lossy rules, which split residual + gradient into an update and a new residual."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..bucket.layout import Parts, Tallies
from ..method.base import Form
from ..method.methods import CompressedMethod
from ..method.registry import implementation_of
from ..ops.array import Flags
from ..ops.interface import Batch, Ops
from ..ops.readback import Pending, Readback
from ..ops.segments import Numbers, Segments
from ..tau.base import PolicyMemory
from ..wire.update import Update

Memories = dict[str, PolicyMemory]
"""Memories of a threshold policy, by parameter name."""


@dataclass
class Context:
    """Inputs of a rule besides a bucket's parameters."""

    iteration: int = 0
    """Steps before this one."""
    hold_back_zeros: bool = False
    """Send nothing for a parameter whose gradient is zero everywhere. DDP drops the result for parameters
    that no worker used, so what was sent for them would be lost."""
    memories: Memories = field(default_factory=dict)
    readback: Readback | None = None
    """Of messages of fixed size: results of passes, which the caller fetches. What is held back is sent as
    zeros."""


@dataclass(slots=True)
class RuleOutput:
    """The update of a bucket."""

    update: Update
    """On the device of the gradients."""
    refused: Pending[Sequence[int]] = list
    """Once everything was fetched, completes the tallies, and returns the ordinals of the parameters whose
    residual + gradient was not finite somewhere. With any, the update is to be put back: residuals have
    gained every finite element of the gradient but what was taken out."""


@dataclass(slots=True)
class BucketInput:
    """A bucket on its way through a rule."""

    segments: Segments
    parts: Parts
    """Of the whole bucket, by ordinal; residuals and velocities change in place."""
    active: Flags
    """bool [parameters of the bucket], which are not held back."""
    context: Context
    ops: Ops
    readback: Readback
    """Results of passes. A rule fetches it if it needs them to go on; it is fetched again with the update."""
    tallies: Tallies

    @property
    def numbers(self) -> Numbers:
        """int64, which of the segments are not held back."""
        return np.flatnonzero(self.active[self.segments.places])

    @property
    def held_back(self) -> list[int]:
        """Ordinals of the segments that are."""
        places = self.segments.places
        held: list[int] = places[~self.active[places]].tolist()
        return held

    def batch(self) -> Batch:
        """The segments, for passes: kept with the parts."""
        batch: Batch | None = self.parts.laid_out.get(self.segments)
        if batch is None:
            segments, parts = self.segments, self.parts.of(self.segments)
            residuals, gradients = [part.residual for part in parts], [part.gradient for part in parts]
            batch = Batch.of(residuals, gradients, segments.sizes, segments.firsts)
            self.parts.laid_out[segments] = batch
        return batch

    def squares_of(self, ordinals: Sequence[int]) -> Callable[[], None]:
        """Sums the squares of residuals that no pass reads; returns what tallies them, once fetched."""
        if not ordinals:
            return lambda: None
        squares = self.ops.squares([self.parts[ordinal].residual for ordinal in ordinals], self.readback)

        def note() -> None:
            self.tallies.residual_squares[ordinals] = squares()

        return note


class Rule(ABC):
    """Decides what a bucket sends. State is in the parts and the context, never in the rule.

    The result for a parameter must not depend on its neighbours: DDP rebuilds its buckets.
    """

    form: Form
    needs_residual: bool = False
    """Whether it needs a residual even if nothing is kept in it."""

    def __init__(self, config: CompressedMethod) -> None:
        self.config = config

    def memory_of(self, name: str) -> type[PolicyMemory]:
        """The class of the memory of a parameter, or of all together (`tau.base.ALL`)."""
        return PolicyMemory

    def retarget(self, before: float, memories: Memories) -> None:  # noqa: B027 (stateless by default)
        """Adapts memories from another target density (`ThresholdPolicy.retarget`)."""

    @abstractmethod
    def run(self, given: BucketInput) -> RuleOutput:
        """Adds gradients to residuals, and takes out the update; `given.tallies` has what it counts."""


def rule_of(method: CompressedMethod) -> Rule:
    """The rule of a method; ValueError if its implementation cannot be imported or created."""
    rule: Rule = implementation_of(type(method), "rule", Rule)(method)
    return rule
