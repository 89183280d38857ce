"""The interface of lossy rules: what is sent of residual + gradient, and what is kept."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..bucket.layout import Part, PartTally, Unit
from ..ops.interface import Ops
from ..ops.returns import Pending, Returns, Steps
from ..tau.base import Memory
from ..wire.forms import Form
from ..wire.update import Update


@dataclass
class Context:
    """What a rule may use in addition to a bucket's parameters."""

    iteration: int = 0
    """Backward passes before this one."""
    hold_back_zeros: bool = False
    """Send nothing for a parameter whose gradient is zero everywhere. DDP drops the result for parameters
    that no worker used, so what was sent for them would be lost."""
    memories: dict[str, Memory] = field(default_factory=dict)
    """What the threshold policy remembers, by parameter name."""


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Ran:
    """What a rule made of a bucket."""

    units: list[Unit]
    """What each update is about; a unit may have several."""
    updates: Sequence[Update]
    """In the coordinates of their units, and in their order."""
    refused: int | None = None
    """The ordinal of the first parameter whose residual + gradient was not finite somewhere. The updates are
    to be put back then: residuals have gained every finite element of the gradient but what was taken out."""


class Tallies:
    """What parameters sent, by ordinal; sums of squares may come later."""

    def __init__(self) -> None:
        """None so far."""
        self.found: dict[int, PartTally] = {}
        self._later: list[tuple[int, Pending[float]]] = []

    def add_squares(self, ordinal: int, squares: Pending[float]) -> None:
        """Adds to the squares of a parameter's residual, when what is returned was fetched."""
        self._later.append((ordinal, squares))

    def settle(self) -> dict[int, PartTally]:
        """All of them, once what is returned was fetched."""
        for ordinal, squares in self._later:
            self.found[ordinal].residual_squares += squares()
        self._later = []
        return self.found


@dataclass(slots=True)
class Turn:
    """A bucket on its way through a rule."""

    units: Sequence[Unit]
    parts: Sequence[Part]
    """Of the whole bucket, by ordinal; residuals and velocities change in place."""
    awake: set[int]
    """Ordinals of the parameters that are not held back."""
    context: Context
    ops: Ops
    looks: Returns
    """What steps wait for."""
    returned: Returns
    """To be fetched before tallies are settled."""
    tallies: Tallies = field(default_factory=Tallies)


class Rule(ABC):
    """Decides what a bucket sends. State is in the parts and the context, never in the rule."""

    form: Form
    """Of its messages."""
    by_parameter: bool = False
    """Whether every parameter is its own unit. This is required if a value depends on its neighbours: DDP
    rebuilds its buckets, and results must not depend on them."""

    needs_residual: bool = False
    """Whether it needs a residual even if nothing is kept in it."""

    @abstractmethod
    def run(self, turn: Turn) -> Steps[Ran]:
        """Adds gradients to residuals, takes out what is sent, keeps the rest.

        Returns:
            What it sends. `turn.tallies` gains those of all parameters of the units.
        """
