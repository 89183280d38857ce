"""A tau, or a floor, computed by a law from the gradients of a run's first iteration, and then kept.

The same function of features serves a run that decides by a law, and the fit of a law to past runs
(search/law).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..bucket.layout import Part
from ..method.policies import Law
from ..observe import statistics_of
from .base import Memory, ThresholdPolicy, as_tau, magnitudes_of

_FAINT = 1e-3
"""A percentile counts as at least this part of the root mean square: where most elements are zero it is 0."""


class LayerSeen(NamedTuple):
    """One layer's gradient."""

    elements: float
    rms: float
    p99: float
    p999: float


class Features(NamedTuple):
    """Of all layers together; natural logarithms."""

    rms: float
    """Of the root mean square over all elements."""
    p99: float
    """Of a layer's 99th percentile of magnitudes over its root mean square, mean over elements."""
    p999: float
    """The same of the 99.9th percentile."""
    layer: float
    """Of a layer's number of elements, mean over elements."""


def features(layers: Sequence[LayerSeen]) -> Features | None:
    """The features of a run's layers; None where no gradient is finite and other than zero."""
    seen = [each for each in layers if 0 < each.rms < math.inf]
    total = math.fsum(each.elements for each in seen)
    if not total:
        return None

    def mean(values: Sequence[float]) -> float:
        return math.fsum(each.elements * value for each, value in zip(seen, values, strict=True)) / total

    return Features(
        0.5 * math.log(mean([each.rms**2 for each in seen])),
        mean([math.log(max(each.p99 / each.rms, _FAINT)) for each in seen]),
        mean([math.log(max(each.p999 / each.rms, _FAINT)) for each in seen]),
        mean([math.log(each.elements) for each in seen]),
    )


def by_law(law: Law, found: Features) -> float:
    """The law's number: a floor, or the natural logarithm of a tau."""
    return law.constant + math.fsum(getattr(law, name) * value for name, value in found._asdict().items())


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


class ByLaw(ThresholdPolicy[LawMemory]):
    """One number for all layers; in the first iteration, when no layer knows of the others, each its own.

    A layer is looked at in its first iteration with a gradient other than zero; no residual is there yet.
    """

    memory = LawMemory
    config: Law

    def needs_sample(self, part: Part, iteration: int, memory: LawMemory) -> bool:
        return memory.rms is None

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[LawMemory]) -> list[float]:
        told = [self.said(part, iteration, memory) for part, memory in zip(parts, memories, strict=True)]
        return [1.0 if said is None else as_tau(math.exp(min(said, 700.0))) for said in told]

    def said(self, part: Part, iteration: int, memory: LawMemory) -> float | None:
        """The law's number for one parameter; None: there was no gradient yet."""
        if memory.rms is None:
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
        layers = [LayerSeen(each.elements, each.rms or 0.0, each.p99, each.p999) for each in seen]
        found = features(layers)
        assert found is not None  # only layers with a gradient are remembered
        return by_law(self.config, found)
