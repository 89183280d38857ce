"""SIDCo: tau from a distribution fitted to magnitudes (Abdelmoniem et al., MLSys 2021, section 2).

Each fit has a closed form in a few moments. It is good near the middle of the magnitudes and off far out in
their tail, as no distribution is quite theirs. So there may be several stages: the first finds what a quarter
of the elements reach, the second fits the excesses over that, and so on; the last takes what share is left.
There are as many as the achieved density asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ..fields import Share
from ..lazy import np
from ..ops.array import Floats32, Floats64
from ..ops.parts import Part
from .base import Sender
from .density import DensityMemory, TargetDensity
from .samples import as_tau, magnitudes_of

Fit = Literal["exponential", "pareto", "gamma"]
STAGE = 0.25
"""The share that every stage but the last lets through."""
FEWEST = 16
"""Excesses below which no further stage is fitted."""


def fitted_tau(fit: Fit, magnitudes: Floats32, density: float, stages: int) -> float:
    """The magnitude that a share of the elements reaches, if they are distributed as the fits say.

    Args:
        fit: of the first stage; `gamma` is followed by `pareto` for the excesses, which a gamma
            distribution, whose density has a pole at 0, does not describe.
        magnitudes: float32 [m], finite; zeros among them count as elements that reach nothing.
        density: the share wanted, greater than 0, at most 1.
        stages: how many at most; a stage that lets through no more than the density is the last.

    Returns:
        tau, not yet brought into its range; 0 without a magnitude that is not zero.
    """
    left = magnitudes[magnitudes > 0].astype(np.float64)
    if not left.size:
        return 0.0
    density = density * magnitudes.size / left.size
    tau = 0.0
    for _ in range(stages - 1):
        if density >= STAGE or left.size < FEWEST:
            break
        step = excess_reached(fit, left, STAGE)
        over = left[left > step]
        if over.size < FEWEST or step <= 0:
            break
        tau, left, density = tau + step, over - step, density * left.size / over.size
        fit = "exponential" if fit == "exponential" else "pareto"
    return tau if density >= 1 else tau + max(excess_reached(fit, left, density), 0.0)


def excess_reached(fit: Fit, values: Floats64, share: float) -> float:
    """What a share (0 to 1) of values greater than 0 reaches, by a fit to them."""
    mean, variance = float(values.mean()), float(values.var())
    if variance <= (1e-6 * mean) ** 2:  # of all equal values, but for rounding
        return mean
    if fit == "exponential":
        return exponential(mean, share)
    if fit == "pareto":
        return pareto(mean, variance, share)
    return gamma(mean, float(np.log(values).mean()), share)


def exponential(mean: float, share: float) -> float:
    """The point beyond which an exponential distribution has a share of its mass."""
    return -mean * math.log(share)


def pareto(mean: float, variance: float, share: float) -> float:
    """Likewise of a generalized Pareto distribution, shape and scale from the first two moments."""
    ratio = mean**2 / variance
    shape, scale = (ratio - 1) / 2, mean * (ratio + 1) / 2
    if abs(shape) < 1e-9:
        return -scale * math.log(share)
    return -scale * math.expm1(shape * math.log(share)) / shape


def gamma(mean: float, mean_log: float, share: float) -> float:
    """Likewise of a gamma distribution, far out: its shape by Minka's closed form, its tail by one term.

    The tail Q(alpha, x), about x^(alpha - 1) exp(-x) / Gamma(alpha), is taken without the power of x, as in
    the paper: tau is too high where alpha is below 1, too low above.
    """
    q = max(math.log(mean) - mean_log, 1e-12)
    alpha = (3 - q + math.sqrt((q - 3) ** 2 + 24 * q)) / (12 * q)
    return -(mean / alpha) * (math.log(share) + math.lgamma(alpha))


# The policy

LOOKS = 5
"""Fits between two decisions on the number of stages (the paper's Q)."""
TOLERANCE = 0.2
"""By how much the mean density may miss the target before that number changes (the paper's epsilon)."""


@dataclass(slots=True)
class FittedMemory(DensityMemory):
    """The memory of one parameter; the rest is for `stages: auto`."""

    stages: int = 1
    looks: int = 0
    """Fits since the last decision on the number of stages."""
    ratios: float = 0.0
    """The sum of what they led to, in multiples of the target."""
    step: int = 1
    """Where more stages are wanted: 1 adds one, -1 takes one away."""
    ratio: float | None = None
    """Their mean at the last decision."""


class FittedTau(TargetDensity):
    """The tau that a target share reaches if magnitudes are distributed as a fit to a sample says (SIDCo)."""

    first_field = "target"
    by_itself = True
    memory = FittedMemory
    again = 1
    """Where a fit is far off, the next one is, too."""

    kind: Literal["sidco"] = "sidco"
    target: Share
    """The share of elements to send."""
    fit: Literal["exponential", "pareto", "gamma"] = "exponential"
    """The distribution that is fitted; after the first stage, gamma uses generalized Pareto."""
    stages: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = "auto"
    """Number of stages; each one fits the upper quarter of the last. auto adapts it to the density that was
    sent."""
    every: int = Field(default=200, ge=1)
    """Iterations from one fit to the next; in between tau is corrected by what was sent."""

    def share(self, iteration: int, memory: FittedMemory) -> float:
        return self.target

    def estimate(self, part: Part, iteration: int, memory: FittedMemory, method: Sender) -> float:
        stages = memory.stages if self.stages == "auto" else self.stages
        return as_tau(fitted_tau(self.fit, magnitudes_of(part), memory.target, stages))

    def begin(self, part: Part, sent: int, memory: FittedMemory) -> None:
        """See `TargetDensity.begin`: it judges the fit."""
        if self.stages != "auto":
            return
        memory.looks += 1
        memory.ratios += sent / (self.target * max(part.elements, 1))
        if memory.looks >= LOOKS:
            ratio = memory.ratios / memory.looks
            memory.looks, memory.ratios = 0, 0.0
            self._adapt(ratio, memory)

    def _adapt(self, ratio: float, memory: FittedMemory) -> None:
        """Adds or takes away a stage where the achieved density is off.

        Whether more stages raise tau depends on the tail: where a change made it worse, or there is no stage
        to add or take away, the next one goes the other way (as the authors' code does).
        """
        before = ratio if memory.ratio is None else memory.ratio
        if abs(ratio - 1) > abs(before - 1):
            memory.step = -memory.step
        memory.ratio = ratio
        if abs(ratio - 1) > TOLERANCE:
            stages = memory.stages + (memory.step if ratio > 1 else -memory.step)
            if 1 <= stages <= most_stages(self.target):
                memory.stages = stages
            else:
                memory.step = -memory.step


def most_stages(density: float) -> int:
    """How many stages a density takes, if all but the last let through a quarter."""
    return max(1, math.ceil(round(math.log(density) / math.log(STAGE), 6)))
