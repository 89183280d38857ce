"""A fixed threshold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from .base import Policy, Sender
from .samples import as_tau

if TYPE_CHECKING:
    from ..ops.parts import Part


class FixedTau(Policy):
    """The same tau always: what a number in place of a policy stands for."""

    by_itself = True

    kind: Literal["fixed"] = "fixed"
    tau: float

    def need_samples(self, parts: Sequence[Part], iteration: int, memories: Sequence[Any]) -> list[bool]:
        return [False] * len(parts)

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[Any], method: Sender
    ) -> list[float]:
        return [self.tau] * len(parts)


@lru_cache(256)
def _fixed(tau: float) -> FixedTau:
    return FixedTau(tau=as_tau(tau))


def policy_of(tau: float | Policy) -> Policy:
    """The policy of a field that takes a number or a policy."""
    return tau if isinstance(tau, Policy) else _fixed(tau)
