"""The interface of lossy rules: what is sent of residual + gradient, and what is kept."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..bucket.layout import Part, PartTally
from ..method.base import Form
from ..method.methods import CompressedMethod
from ..method.registry import implementation_of
from ..ops.interface import Ops
from ..ops.readback import Pending, Readback
from ..ops.segments import Segments
from ..tau.base import Memory
from ..wire.update import Update

Memories = dict[str, Memory]
"""What a threshold policy remembers, by parameter name."""


@dataclass
class Context:
    """What a rule may use in addition to a bucket's parameters."""

    iteration: int = 0
    """Backward passes before this one."""
    hold_back_zeros: bool = False
    """Send nothing for a parameter whose gradient is zero everywhere. DDP drops the result for parameters
    that no worker used, so what was sent for them would be lost."""
    memories: Memories = field(default_factory=dict)


@dataclass(slots=True)
class RuleOutput:
    """What a rule made of a bucket."""

    update: Update
    """On the device of the gradients."""
    refused: Sequence[int] = ()
    """Ordinals of the parameters whose residual + gradient was not finite somewhere. The update is to be put
    back then: residuals have gained every finite element of the gradient but what was taken out."""


@dataclass(slots=True)
class BucketInput:
    """A bucket on its way through a rule."""

    segments: Segments
    """The parameters that the rule is about."""
    parts: Sequence[Part]
    """Of the whole bucket, by ordinal; residuals and velocities change in place."""
    active: set[int]
    """Ordinals of the parameters that are not held back."""
    context: Context
    ops: Ops
    readback: Readback
    """What a rule asks for, and fetches, to go on."""
    returned: Readback
    """What is needed later only: it is fetched before tallies are settled."""
    tallies: dict[int, PartTally] = field(default_factory=dict)
    """What parameters sent, by ordinal."""
    squares: list[tuple[int, Pending[float]]] = field(default_factory=list)
    """What comes to their residuals' squares, once what is returned was fetched."""


class Rule(ABC):
    """Decides what a bucket sends. State is in the parts and the context, never in the rule.

    The result for a parameter must not depend on its neighbours: DDP rebuilds its buckets.
    """

    form: Form
    """Of its updates."""
    needs_residual: bool = False
    """Whether it needs a residual even if nothing is kept in it."""

    def __init__(self, config: CompressedMethod) -> None:
        """By a method's fields."""
        self.config = config

    def memory_of(self, name: str) -> type[Memory]:
        """What is remembered of the parameter of that name, or of all together (`tau.base.ALL`)."""
        return Memory

    def turn(self, before: float, memories: Memories) -> None:  # noqa: B027 (few remember)
        """Takes over what was remembered when another share was aimed at (`ThresholdPolicy.turn`)."""

    @abstractmethod
    def run(self, given: BucketInput) -> RuleOutput:
        """Adds gradients to residuals, takes out what is sent, keeps the rest.

        Returns:
            What it sends. `given.tallies` gains those of all parameters.
        """


def rule_of(method: CompressedMethod) -> Rule:
    """The rule at work by a method's fields.

    Raises:
        ValueError: the address of its rule leads to none.
    """
    rule: Rule = implementation_of(type(method), "rule", Rule)(method)
    return rule
