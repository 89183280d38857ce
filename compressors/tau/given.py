"""tau by iteration, and by parameter name."""

import bisect
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..bucket.layout import Part
from ..method.policies import LayeredTau, ScheduledTau
from ..method.sparse import ThresholdedMethod
from .base import PolicyMemory, ThresholdPolicy, as_tau, policy_of


class Scheduled(ThresholdPolicy[PolicyMemory]):
    """tau by iteration, interpolated between points."""

    config: ScheduledTau

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[PolicyMemory]) -> list[float]:
        return [as_tau(self._at(iteration))] * len(parts)

    def _at(self, iteration: int) -> float:
        at, taus = list(self.config.points), list(self.config.points.values())
        after = bisect.bisect_right(at, iteration)
        if after == 0 or after == len(at) or self.config.between == "step":
            return taus[max(after - 1, 0)]
        done = (iteration - at[after - 1]) / (at[after] - at[after - 1])
        low, high = taus[after - 1], taus[after]
        if self.config.between == "linear":
            return low + done * (high - low)
        return float(low * (high / low) ** done)


class Layered(ThresholdPolicy[Any]):
    """The policy of the first pattern that matches, or the default; all are `Policy.by_itself`."""

    def __init__(self, config: LayeredTau, method: ThresholdedMethod) -> None:
        super().__init__(config, method)
        self.patterns = [(pattern, policy_of(tau, method)) for pattern, tau in config.patterns.items()]
        self.default = policy_of(config.default, method)

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Any]) -> list[float]:
        pairs = zip(parts, memories, strict=True)
        return [self._of(part.name).taus((part,), iteration, (memory,))[0] for part, memory in pairs]

    def needs_sample(self, part: Part, iteration: int, memory: Any) -> bool:
        return self._of(part.name).needs_sample(part, iteration, memory)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Any]
    ) -> None:
        for part, count, memory in zip(parts, sent, memories, strict=True):
            self._of(part.name).note((part,), (count,), iteration, (memory,))

    def memory_of(self, name: str) -> type[PolicyMemory]:
        return self._of(name).memory_of(name)

    def _of(self, name: str) -> ThresholdPolicy[Any]:
        matches = (policy for pattern, policy in self.patterns if fnmatchcase(name, pattern))
        return next(matches, self.default)
