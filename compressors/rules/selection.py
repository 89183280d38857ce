"""Which elements of a parameter a sparse rule takes out, and the threshold selection of four rules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..tau.base import ALL, Memory

if TYPE_CHECKING:  # the rules' fields are read without torch
    from ..bucket.layout import Part
    from ..method.sparse import ThresholdedMethod
    from ..ops.interface import Ops
    from ..ops.readback import Pending, Readback
    from ..ops.results import Batch, Selected, ThresholdRule
    from ..wire.update import Chunks

Memories = dict[str, Memory]
"""Of all parameters, by name."""


class Selection(ABC):
    """Decides the threshold or density of each parameter in a bucket, and runs the passes."""

    rule: "ThresholdRule"
    """The name of the rule: how an element is sent."""
    has_tau: bool = True
    chunks: "Chunks | None" = None

    @abstractmethod
    def aims(self, parts: Sequence["Part"], iteration: int, memories: Memories) -> list[float]:
        """Decides a tau, or a density, for the pass of each part.

        Args:
            parts: of one bucket; a part that `needs_sample` may be a sample of its magnitudes.
            iteration: backward passes before this one.
            memories: receives those of the parts.
        """

    def needs_sample(self, part: "Part", iteration: int, memories: Memories) -> bool:
        """Whether a sample of the part decides its tau, in `aims` or in `take`."""
        return False

    @abstractmethod
    def take(
        self,
        batch: "Batch",
        samples: Sequence["Part"],
        aims: Sequence[float],
        ops: "Ops",
        readback: "Readback",
    ) -> "Pending[Selected]":
        """Starts the passes.

        Args:
            batch: some parameters.
            samples: the parameters, or samples of their magnitudes; see `aims`.
            aims: the tau or density of each one's pass.
            ops: of their device.
            readback: receives the results of the passes.
        """

    def note(  # noqa: B027 (only policies learn)
        self, parts: Sequence["Part"], sent: Sequence[int], iteration: int, memories: Memories
    ) -> None:
        """Records what was sent of parts that were not held back."""


class ByThreshold(Selection):
    """Selects what reaches tau (wgt, bgt, qgt) or exceeds it (strom)."""

    def __init__(self, config: "ThresholdedMethod") -> None:
        self.rule = config.sends
        self.policy = config.policy()

    def aims(self, parts: Sequence["Part"], iteration: int, memories: Memories) -> list[float]:
        """See `Selection.aims`."""
        own = self._memories(parts, memories)
        self.policy.settle(own, iteration, memories)
        return self.policy.taus(parts, iteration, own)

    def needs_sample(self, part: "Part", iteration: int, memories: Memories) -> bool:
        """See `Selection.needs_sample`."""
        return self.policy.needs_sample(part, iteration, self._memories((part,), memories)[0])

    def note(self, parts: Sequence["Part"], sent: Sequence[int], iteration: int, memories: Memories) -> None:
        """See `Selection.note`."""
        self.policy.note(parts, sent, iteration, self._memories(parts, memories))

    def take(
        self,
        batch: "Batch",
        samples: Sequence["Part"],
        aims: Sequence[float],
        ops: "Ops",
        readback: "Readback",
    ) -> "Pending[Selected]":
        """See `Selection.take`."""
        return ops.take_by_threshold(self.rule, batch, aims, readback)

    def _memories(self, parts: Sequence["Part"], memories: Memories) -> list[Memory]:
        """Those of some parts, made where there are none."""
        names = [ALL] * len(parts) if self.policy.together else [part.name for part in parts]
        try:
            return [memories[name] for name in names]
        except KeyError:
            for name in names:
                if name not in memories:
                    memories[name] = self.policy.memory_of(name)()
            return [memories[name] for name in names]
