"""Threshold policies at work: each parameter's tau, decided before its pass, apart from the rule.

A policy keeps nothing itself. What it remembers of a parameter stands in a `Memory` that the caller keeps,
saves and restores; its entries are plain numbers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..config.law import LawTau
from ..config.methods import ThresholdedMethod
from ..config.thresholds import (
    AllocatedTau,
    DensityTau,
    Dl4jTau,
    FittedTau,
    LayeredTau,
    ScheduledTau,
    Threshold,
)
from .allocated import Allocated, value_bits
from .base import ALL, Memory, ThresholdPolicy
from .by_law import ByLaw
from .density import Density, density_at
from .dl4j import Dl4j
from .given import Fixed, Scheduled
from .layers import Layered
from .sampling import SAMPLE, sampled_tau
from .sidco import Fitted

__all__ = ["ALL", "SAMPLE", "ByLaw", "Memory", "ThresholdPolicy", "build_policy", "density_at", "sampled_tau"]


def build_policy(method: ThresholdedMethod) -> ThresholdPolicy:
    """The policy that a method's threshold describes."""
    return _build(method.tau, method)


_BY_ITSELF: dict[type, Callable[[Any], ThresholdPolicy]] = {
    ScheduledTau: Scheduled,
    DensityTau: Density,
    FittedTau: Fitted,
    Dl4jTau: Dl4j,
    LawTau: ByLaw,
}
"""Policies that need no more than their configuration."""


def _build(config: Threshold, method: ThresholdedMethod) -> ThresholdPolicy:
    if isinstance(config, float):
        return Fixed(np.float32(config))
    if isinstance(config, AllocatedTau):
        return Allocated(config, method.kind, value_bits(method))
    if isinstance(config, LayeredTau):
        patterns = tuple((pattern, _build(each, method)) for pattern, each in config.patterns.items())
        return Layered(patterns, _build(config.default, method))
    return _BY_ITSELF[type(config)](config)
