"""The interface of threshold policies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..bucket.layout import Part

Memory = dict[str, float]
"""What a policy remembers of one parameter."""
ALL = ""
"""The name under which a policy remembers what it remembers of all parameters together; none has it."""


class ThresholdPolicy(ABC):
    """Decides taus; automatic policies also learn from what they led to.

    Several parameters are decided for in one call, a bucket's mostly: in most iterations there is little to
    do for each, and a call for each would take longer than that. Which of them share a call, and in which
    order they stand in it, must not change what comes out: DDP rebuilds its buckets.
    """

    together: ClassVar[bool] = False
    """Whether all parameters have one memory between them, that of ALL."""

    @abstractmethod
    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """The thresholds for some parameters in one iteration.

        Args:
            parts: the parameters; a residual does not hold the gradient yet. One that `needs_sample` may be
                a sample of its magnitudes instead, without a residual.
            iteration: backward passes before this one, over the whole run.
            memories: theirs, in the same order; may be changed.

        Returns:
            SMALLEST_TAU to LARGEST_TAU, each a float32's value.
        """

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """Whether `taus` is going to look at a part's tensors, at a sample of SAMPLE elements at most."""
        return False

    def note(  # noqa: B027 (most have nothing to learn)
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Memory]
    ) -> None:
        """Takes note of how many of each parameter's elements were sent with the tau decided last.

        Args:
            parts: the parameters; none that was held back.
            sent: how many of each one's elements.
            iteration: as for `taus`.
            memories: theirs; may be changed.
        """

    def settle(  # noqa: B027
        self, turn: Sequence[Memory], iteration: int, memories: Mapping[str, Memory]
    ) -> None:
        """Decides what is decided for all parameters at once; called before `taus`.

        It goes by what earlier iterations left in the memories, never by this one's: a bucket is compressed
        before the next one's gradients are there, and what is sent must not depend on buckets.

        Args:
            turn: the memories of the parameters whose turn it is.
            iteration: as for `taus`.
            memories: of all parameters; may be changed.
        """
