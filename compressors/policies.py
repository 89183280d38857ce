"""Threshold policies at work: each parameter's tau, decided before its pass, apart from the rule.

A policy keeps nothing itself. What it remembers of a parameter stands in a `Memory` that the caller keeps,
saves and restores; its entries are plain numbers.
"""

import bisect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import NDArray

from .config.base import LARGEST_TAU, SMALLEST_TAU
from .config.thresholds import DensityTau, LayeredTau, ScheduledTau, Threshold, Warmup
from .kernels.sampling import stratified_positions
from .kernels.topk import sampled_magnitude
from .parts import Part

Memory = dict[str, float]
"""What a policy remembers of one parameter."""
_SAMPLE = 2**14


class ThresholdPolicy(ABC):
    """Decides tau; automatic policies also learn from what it led to."""

    @abstractmethod
    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """The threshold for one parameter in one iteration.

        Args:
            part: the parameter; its residual does not hold the gradient yet.
            iteration: backward passes before this one, over the whole run.
            memory: of this parameter; may be changed.

        Returns:
            SMALLEST_TAU to LARGEST_TAU.
        """

    def note(self, part: Part, sent: int, memory: Memory) -> None:  # noqa: B027 (most have nothing to learn)
        """Takes note of how many of the parameter's elements were sent with the tau decided last."""


@dataclass(frozen=True)
class Fixed(ThresholdPolicy):
    """The same tau always."""

    value: np.float32

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        return self.value


@dataclass(frozen=True)
class Scheduled(ThresholdPolicy):
    """tau by iteration, interpolated between points."""

    config: ScheduledTau

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        at, taus = list(self.config.points), list(self.config.points.values())
        after = bisect.bisect_right(at, iteration)
        if after == 0 or after == len(at) or self.config.between == "step":
            return np.float32(taus[max(after - 1, 0)])
        done = (iteration - at[after - 1]) / (at[after] - at[after - 1])
        low, high = taus[after - 1], taus[after]
        if self.config.between == "linear":
            return np.float32(low + done * (high - low))
        return np.float32(low * (high / low) ** done)


@dataclass(frozen=True)
class Density(ThresholdPolicy):
    """The magnitude that a target share of a sample of the parameter's elements reaches."""

    config: DensityTau

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        if memory.get("next", 0) <= iteration:
            target = density_at(self.config.target, self.config.warmup, iteration)
            memory["tau"] = float(sampled_tau(part, target))
            memory["next"] = float(iteration + self.config.every)
        return np.float32(memory["tau"])


@dataclass(frozen=True)
class Layered(ThresholdPolicy):
    """A policy of its own for parameters whose name fits a pattern."""

    patterns: tuple[tuple[str, ThresholdPolicy], ...]
    default: ThresholdPolicy

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        return self._of(part).tau(part, iteration, memory)

    def note(self, part: Part, sent: int, memory: Memory) -> None:
        """See `ThresholdPolicy.note`."""
        self._of(part).note(part, sent, memory)

    def _of(self, part: Part) -> ThresholdPolicy:
        fitting = (policy for pattern, policy in self.patterns if fnmatchcase(part.name, pattern))
        return next(fitting, self.default)


def build_policy(config: Threshold) -> ThresholdPolicy:
    """The policy that a threshold's configuration describes."""
    if isinstance(config, ScheduledTau):
        return Scheduled(config)
    if isinstance(config, DensityTau):
        return Density(config)
    if isinstance(config, LayeredTau):
        patterns = tuple((pattern, build_policy(each)) for pattern, each in config.patterns.items())
        return Layered(patterns, build_policy(config.default))
    return Fixed(np.float32(config))


def density_at(target: float, warmup: Warmup | None, iteration: int) -> float:
    """The density in one iteration: during the warm-up it falls in stages, exponentially, down to the target.

    Deep Gradient Compression, section 3.3: 25%, 6.25%, 1.56%, 0.4%, then 0.1%.
    """
    if warmup is None or iteration >= warmup.iterations:
        return target
    stage = iteration * warmup.stages // warmup.iterations
    ratio = float(target / warmup.start)
    return warmup.start * float(ratio ** (stage / warmup.stages))


def sampled_tau(part: Part, density: float) -> np.float32:
    """The magnitude of residual + gradient that about `density` of the elements reach, from 2^14 of them."""
    gradient, residual = part.gradient, part.residual
    if gradient.device.type != "cpu" or gradient.dtype != torch.float32:
        positions = torch.from_numpy(stratified_positions(part.elements, min(_SAMPLE, part.elements)))
        positions = positions.to(gradient.device)
        gradient = gradient[positions].float().cpu()
        residual = None if residual is None else residual[positions].cpu()
    gradient_M: NDArray[np.float32] = gradient.numpy()
    residual_M = np.zeros_like(gradient_M) if residual is None else residual.numpy()
    tau = float(sampled_magnitude(residual_M, gradient_M, density, _SAMPLE))
    return np.float32(min(max(tau, SMALLEST_TAU), LARGEST_TAU)) if math.isfinite(tau) else np.float32(1)
