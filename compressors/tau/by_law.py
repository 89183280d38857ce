"""A tau, or a floor, computed by a law from the gradients of a run's first iteration, and then kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ..method.base import Settings
from .base import Memory, Policy, ThresholdPolicy, as_tau

if TYPE_CHECKING:
    from ..bucket.layout import Part
    from ..method.sparse import ThresholdedMethod

Weight = Annotated[float, Field(ge=-100, le=100)]


@dataclass(slots=True)
class LawMemory(Memory):
    """Of one parameter, from its first gradient other than zero."""

    rms: float | None = None
    p99: float = 0.0
    p999: float = 0.0
    elements: int = 0
    looked: int = 0
    """In which iteration."""
    alone: bool = False
    """Whether it goes by itself yet, as it knew of no others."""
    said: float = 0.0
    """The law's number."""


class Law(Settings):
    """constant + sum of weights x features of all gradients of the first iteration.

    The features are natural logarithms, see `compressors.tau.law`. Weights are of past runs: `taugrad law`.
    """

    first_field = "constant"

    kind: Literal["law"] = "law"
    constant: Weight
    """The constant term, which covers the run's batch, learning rate and workers."""
    rms: Weight = 0.0
    """Weight of ln(root mean square)."""
    p99: Weight = 0.0
    """Weight of ln(99th percentile of magnitudes / root mean square)."""
    p999: Weight = 0.0
    """Weight of ln(99.9th percentile / root mean square)."""
    layer: Weight = 0.0
    """Weight of ln(elements of a layer)."""


class LawTau(Law, Policy):
    """The natural logarithm of tau by a law; one tau for all layers."""

    rms: Weight = 1.0
    """Weight of ln(root mean square): with 1, tau is a multiple of it."""

    def build(self, method: "ThresholdedMethod") -> "ByLaw":
        """See `Policy.build`."""
        return ByLaw(self)


@dataclass(frozen=True)
class ByLaw(ThresholdPolicy[LawMemory]):
    """One number for all layers; in the first iteration, when no layer knows of the others, each its own.

    A layer is looked at in its first iteration with a gradient other than zero; no residual is there yet.
    """

    memory = LawMemory
    law: Law

    def needs_sample(self, part: "Part", iteration: int, memory: LawMemory) -> bool:
        """See `ThresholdPolicy.needs_sample`."""
        return memory.rms is None

    def taus(self, parts: Sequence["Part"], iteration: int, memories: Sequence[LawMemory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        told = [self.said(part, iteration, memory) for part, memory in zip(parts, memories, strict=True)]
        return [1.0 if said is None else as_tau(math.exp(min(said, 700.0))) for said in told]

    def said(self, part: "Part", iteration: int, memory: LawMemory) -> float | None:
        """The law's number for one parameter; None: there was no gradient yet."""
        if memory.rms is None:
            from ..observe import statistics_of  # noqa: PLC0415 (torch, which reading a configuration needs not)
            from .sampling import magnitudes_of  # noqa: PLC0415

            seen = statistics_of(magnitudes_of(part))
            if not 0 < seen.rms < math.inf:
                return None
            memory.rms, memory.p99, memory.p999 = seen.rms, seen.p99, seen.p999
            memory.elements, memory.looked, memory.alone = part.elements, iteration, True
            memory.said = self._of([memory])
        return memory.said

    def settle(self, turn: Sequence[LawMemory], iteration: int, memories: Mapping[str, LawMemory]) -> None:
        """See `ThresholdPolicy.settle`: layers take the number of all that were looked at by then."""
        alone = [memory for memory in turn if memory.alone and memory.looked < iteration]
        if not alone:
            return
        said = self._of(
            [each for each in memories.values() if each.rms is not None and each.looked < iteration]
        )
        for memory in alone:
            memory.said, memory.alone = said, False

    def _of(self, seen: Sequence[LawMemory]) -> float:
        from .law import LayerSeen, by_law, features  # noqa: PLC0415 (it needs the law above)

        layers = [LayerSeen(each.elements, each.rms or 0.0, each.p99, each.p999) for each in seen]
        found = features(layers)
        assert found is not None  # only layers with a gradient are remembered
        return by_law(self.law, found)
