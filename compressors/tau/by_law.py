"""A tau, or a floor, that a law computes from the gradients of a run's first iteration, and keeps.

The fit of a law to past runs (search/law) uses the same features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..bucket.layout import Part
from ..method.policies import Law
from ..observe import statistics_of
from .base import PolicyMemory, ThresholdPolicy, as_tau, magnitudes_of

_SMALLEST_RATIO = 1e-3
"""Lower bound of a percentile over the root mean square: it is 0 if most elements are zero."""


class LayerStatistics(NamedTuple):
    """Statistics of a layer's gradient."""

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


def features(layers: Sequence[LayerStatistics]) -> Features | None:
    """The features of a run's layers; None if no gradient is finite and nonzero."""
    seen = [layer for layer in layers if 0 < layer.rms < math.inf]
    total = math.fsum(layer.elements for layer in seen)
    if not total:
        return None

    def mean(values: Sequence[float]) -> float:
        return math.fsum(layer.elements * value for layer, value in zip(seen, values, strict=True)) / total

    rms = 0.5 * math.log(mean([layer.rms**2 for layer in seen]))
    p99 = mean([math.log(max(layer.p99 / layer.rms, _SMALLEST_RATIO)) for layer in seen])
    p999 = mean([math.log(max(layer.p999 / layer.rms, _SMALLEST_RATIO)) for layer in seen])
    return Features(rms, p99, p999, mean([math.log(layer.elements) for layer in seen]))


def by_law(law: Law, features: Features) -> float:
    """The law's number: a floor, or the natural logarithm of a tau."""
    weighted = (getattr(law, name) * value for name, value in features._asdict().items())
    return law.constant + math.fsum(weighted)


@dataclass(slots=True)
class LawMemory(PolicyMemory):
    """Of one parameter, from its first nonzero gradient."""

    rms: float | None = None
    p99: float = 0.0
    p999: float = 0.0
    elements: int = 0
    looked: int = 0
    """The iteration of that gradient."""
    alone: bool = False
    """Whether the law's number is of this parameter alone."""
    said: float = 0.0


class ByLaw(ThresholdPolicy[LawMemory]):
    """One number for all layers; in the first iteration, one for each layer.

    Features are of a layer's first nonzero gradient, before there is a residual.
    """

    memory = LawMemory
    config: Law

    def needs_sample(self, part: Part, iteration: int, memory: LawMemory) -> bool:
        return memory.rms is None

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[LawMemory]) -> list[float]:
        numbers = [self.number(part, iteration, memory) for part, memory in zip(parts, memories, strict=True)]
        return [1.0 if number is None else as_tau(math.exp(min(number, 700.0))) for number in numbers]

    def number(self, part: Part, iteration: int, memory: LawMemory) -> float | None:
        """The law's number for a parameter; None before its first gradient."""
        if memory.rms is None:
            statistics = statistics_of(magnitudes_of(part))
            if not 0 < statistics.rms < math.inf:
                return None
            memory.rms, memory.p99, memory.p999 = statistics.rms, statistics.p99, statistics.p999
            memory.elements, memory.looked, memory.alone = part.elements, iteration, True
            memory.said = self._number_of([memory])
        return memory.said

    def decide(self, due: Sequence[LawMemory], iteration: int, memories: Mapping[str, LawMemory]) -> None:
        """See `ThresholdPolicy.decide`: layers take the number of all layers of earlier iterations."""
        alone = [memory for memory in due if memory.alone and memory.looked < iteration]
        if not alone:
            return
        seen = [memory for memory in memories.values() if memory.rms is not None]
        number = self._number_of([memory for memory in seen if memory.looked < iteration])
        for memory in alone:
            memory.said, memory.alone = number, False

    def _number_of(self, memories: Sequence[LawMemory]) -> float:
        of_run = features(
            [LayerStatistics(one.elements, one.rms or 0.0, one.p99, one.p999) for one in memories]
        )
        assert of_run is not None  # memories are of layers with a gradient
        return by_law(self.config, of_run)
