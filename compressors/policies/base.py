"""The interface of threshold policies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from ..parts import Part

Memory = dict[str, float]
"""What a policy remembers of one parameter."""


class ThresholdPolicy(ABC):
    """Decides tau; automatic policies also learn from what it led to."""

    @abstractmethod
    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """The threshold for one parameter in one iteration.

        Args:
            part: the parameter; its residual does not hold the gradient yet. Where `needs_sample` it may be
                a sample of the parameter's magnitudes instead, without a residual.
            iteration: backward passes before this one, over the whole run.
            memory: of this parameter; may be changed.

        Returns:
            SMALLEST_TAU to LARGEST_TAU.
        """

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """Whether `tau` is going to look at the part's tensors, at a sample of SAMPLE elements at most."""
        return False

    def note(self, part: Part, sent: int, memory: Memory) -> None:  # noqa: B027 (most have nothing to learn)
        """Takes note of how many of the parameter's elements were sent with the tau decided last."""

    def settle(self, name: str, iteration: int, memories: Mapping[str, Memory]) -> None:  # noqa: B027
        """Decides what is decided for all parameters at once; called before each parameter's `tau`.

        It goes by what earlier iterations left in the memories, never by this one's: a bucket is compressed
        before the next one's gradients are there, and what is sent must not depend on buckets.

        Args:
            name: of the parameter whose turn it is.
            iteration: as for `tau`.
            memories: of all parameters; may be changed.
        """
