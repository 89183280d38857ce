"""The interface of lossy rules: what of residual + gradient is sent, what is kept."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..bucket.adding import add_to
from ..bucket.layout import Part, PartTally, Scratch, Unit
from ..ops.cpu import sparse
from ..tau import Memory
from ..wire.forms import Form
from ..wire.update import Update


@dataclass
class Context:
    """What a rule may use besides a unit's parameters."""

    iteration: int = 0
    """Backward passes before this one."""
    threads: int = 1
    """How many may share a pass."""
    hold_back_zeros: bool = False
    """Send nothing for a parameter whose gradient is zero everywhere. DDP drops the result for parameters
    that no worker used, and what was sent for them would be lost."""
    scratch: Scratch = field(default_factory=Scratch)
    """Updates share its memory and are valid until its next use."""
    memories: dict[str, Memory] = field(default_factory=dict)
    """What the threshold policy remembers, by parameter name."""


@dataclass(frozen=True)
class Ran:
    """What a rule made of one unit."""

    updates: list[Update]
    """In the unit's coordinates; empty where the unit was refused."""
    tallies: list[PartTally]
    """Of each place of the unit, in order."""
    refused: int | None = None
    """The ordinal of the first parameter whose residual + gradient was not finite somewhere. Then nothing is
    sent, residuals gained every finite element of the gradient and none of the others."""


class Rule(ABC):
    """Decides what a unit sends. State stands in the parts and the context, never in the rule."""

    form: Form
    """Of its messages."""
    by_parameter: bool = False
    """Whether every parameter is a unit of its own. It must be where a value depends on its neighbours: DDP
    rebuilds its buckets, and results must not depend on them."""

    needs_residual: bool = False
    """Whether it needs a residual even where nothing is kept in it."""

    @abstractmethod
    def run(self, unit: Unit, parts: Sequence[Part], context: Context) -> Ran:
        """Adds gradients to residuals, takes out what is sent, keeps the rest.

        Args:
            unit: the places to work on.
            parts: of the whole bucket, by ordinal; on the CPU.
            context: see there.
        """


def held_back(part: Part, context: Context) -> bool:
    """Whether nothing is sent for a part because its gradient is zero everywhere; NaN is not zero."""
    return context.hold_back_zeros and bool(sparse.all_zero(part.gradient.float().numpy()))


def squares(residual: Tensor | None) -> float:
    """Sum of squares; 0 without a residual."""
    return 0.0 if residual is None else float(residual.double().square().sum())


def put_back(update: Update, unit: Unit, parts: Sequence[Part]) -> None:
    """Adds an update that was not sent to the residuals it was taken from, where there are any."""
    dense = torch.zeros(unit.n, dtype=torch.float32)
    add_to(update, dense.numpy())
    for place, elements in unit.slices(every=update.words is None):
        residual = parts[place.ordinal].residual
        if residual is not None:
            residual += dense[elements].to(residual.device)
