"""A tau per layer, so that all take the fewest bits at an error budget; decided every few iterations.

A layer's choices are on a curve: the share of its elements that is sent, the tau for it, and the error: the
sum of squares of what is not sent. Curves come from a sample's magnitudes by cumulative sums over them in
descending order; L-GreCo (Markov et al., MLSys 2024) has such tables for bit widths.

Every choice that minimizes bits + multiplier x error, layer by layer, is the cheapest for the error it has
(Everett's theorem, which needs no convexity). The multiplier is found by bisection, and what is then left of
the budget is spent layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from ..fields import Share
from ..lazy import np
from ..ops.array import Floats32, Numbers
from ..ops.array import Floats64 as Floats
from ..ops.interface import LARGEST_TAU, SMALLEST_TAU, ThresholdRule
from ..ops.parts import Part
from .base import Sender
from .density import DensityMemory, TargetDensity
from .samples import as_tau, magnitudes_of, reached_by

CHOICES = 25
"""Points of a layer's curve."""
REACH = 32
"""How many times a layer's density may lie below or above that of the budget."""
_BISECTIONS = 28
_MOST = 255
"""Taus that a level of qgt stands for, at most."""
_GOLDEN = (1 + math.sqrt(5)) / 2


@dataclass(frozen=True)
class Curves:
    """Every layer's choices, from the sparsest to the densest.

    Attributes:
        elements: float64 [L].
        sent: float64 [L, C], shares of the elements, ascending.
        taus: float64 [L, C], descending.
        errors: float64 [L, C], sum of squares of what is not sent, over the elements.
    """

    elements: Floats
    sent: Floats
    taus: Floats
    errors: Floats

    def bits(self, value_bits: float) -> Floats:
        """float64 [L, C], what a layer's message takes."""
        return self.elements[:, None] * bits_per_element(self.sent, value_bits)

    def squares(self) -> Floats:
        """float64 [L, C], what a layer does not send."""
        return self.elements[:, None] * self.errors


def curve_of(magnitudes: Floats32, density: float, rule: ThresholdRule) -> Floats:
    """One layer's curve around a density.

    Args:
        magnitudes: float32 [m], finite, a sample; m at least 1.
        density: the middle of the shares, which reach from a REACH-th of it to REACH times it, at most 1.
        rule: what stands for an element that is sent, and so what of it is not.

    Returns:
        `sent`, `taus` and `errors` as in `Curves`, float64 [3, CHOICES].
    """
    m, shares = magnitudes.size, np.minimum(density * np.geomspace(1 / REACH, REACH, CHOICES), 1.0)
    ascending = np.sort(magnitudes).astype(np.float64)
    # Rounded first, as 0.07 * 100 is a little more than 7.
    ranks = np.maximum(np.ceil(np.rint(shares * m * 1e6) / 1e6).astype(np.int64), 1)
    taus = np.clip(ascending[m - ranks], SMALLEST_TAU, LARGEST_TAU)
    reached, squares = (np.append(0, np.cumsum(values)) for values in (ascending[::-1], ascending[::-1] ** 2))
    unsent = squares[m] - squares[ranks]
    if rule in ("bgt", "strom"):
        unsent += squares[ranks] - 2 * taus * reached[ranks] + ranks * taus**2
    elif rule == "qgt":
        # Of the largest so many taus are sent, and no more. Of others one, or more: where tau is small, rests
        # are spread evenly below it.
        top = np.minimum(m - np.searchsorted(ascending, (_MOST + 1) * taus), ranks)
        unsent += squares[top] - 2 * _MOST * taus * reached[top] + top * (_MOST * taus) ** 2
        below, count = squares[ranks] - squares[top], ranks - top
        one = below - 2 * taus * (reached[ranks] - reached[top]) + count * taus**2
        unsent += np.minimum(one, count * taus**2 / 3)
    return np.stack((ranks / m, taus, np.maximum(unsent, 0) / m))


def bits_per_element(sent: Floats, value_bits: float) -> Floats:
    """What a message takes for each of a layer's elements, in which a share of them is sent.

    Positions as Golomb-Rice codes them (Kiely 2004): b bits and on average 1 / (1 - (1 - p)^(2^b)) more, with
    b = max(0, ceil(log2(ln(phi - 1) / ln(1 - p)))); at most the one bit of a bitmap.
    """
    p = np.clip(sent, 1e-12, 1 - 1e-12)
    empty = np.log1p(-p)
    b = np.maximum(0.0, np.ceil(np.log2(math.log(_GOLDEN - 1) / empty)))
    position_bits = b - 1 / np.expm1(2.0**b * empty)
    return np.minimum(p * position_bits, 1.0) + sent * value_bits


def allocate(curves: Curves, density: float, value_bits: float) -> tuple[Floats, Floats]:
    """Each layer's tau at the error that one tau for all layers would have at a density.

    This one tau sends that share of all elements; where a layer has no choice as far out as it, the layer's
    nearest one stands for it. `value_bits` are those of an element sent, besides its position.

    Returns:
        taus and shares sent, float64 [L]. They take no more bits than the one tau, and leave no more unsent.
    """
    curves = with_one_tau(curves, density)
    cost, error = curves.bits(value_bits), curves.squares()
    one = curves.taus.shape[1] - 1  # it stands last
    chosen = cheapest(cost, error, one)
    rows = np.arange(chosen.size)
    return curves.taus[rows, chosen], curves.sent[rows, chosen]


def cheapest(cost: Floats, error: Floats, given: int) -> Numbers:
    """The choices of layers with low costs, and errors no larger than those of the choice given.

    Args:
        cost: float64 [L, C].
        error: float64 [L, C], none negative.
        given: the choice that all layers would take otherwise.

    Returns:
        int64 [L]. Neither their cost nor their error is more than with the choice given. Their cost exceeds
        the least possible at most by the range of one layer's costs.
    """
    rows = np.arange(cost.shape[0])
    otherwise = np.full(rows.size, given)
    allowed = math.fsum(error[rows, otherwise])

    def minimizing(exponent: float) -> Numbers:
        choices: Numbers = np.argmin(cost + math.exp(exponent) * error, axis=1)
        return choices

    # Far enough either way for one of the two terms to be all that counts.
    middle = math.log(max(float(cost.max()), 1e-100)) - math.log(max(float(error.max()), 1e-100))
    low, high = middle - 60, middle + 60
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if math.fsum(error[rows, minimizing(middle)]) > allowed:
            low = middle
        else:
            high = middle
    cheap = minimizing(high)
    if math.fsum(error[rows, cheap]) > allowed:  # errors differ by less than the multipliers reach
        cheap = otherwise
    chosen = _spend(cost, error, cheap, allowed)
    return chosen if math.fsum(cost[rows, chosen]) <= math.fsum(cost[rows, otherwise]) else otherwise


def _spend(cost: Floats, error: Floats, chosen: Numbers, allowed: float) -> Numbers:
    """Cheaper choices for layers in turn, as far as the budget goes, the one that saves most first."""
    chosen, rows = chosen.copy(), np.arange(chosen.size)
    while True:
        slack = allowed - math.fsum(error[rows, chosen])
        saved = cost[rows, chosen][:, None] - cost
        fits = (error - error[rows, chosen][:, None] <= slack) & (saved > 0)
        if not fits.any():
            return chosen
        layer, choice = np.unravel_index(np.argmax(np.where(fits, saved, -1.0)), cost.shape)
        before = chosen[layer]
        chosen[layer] = choice
        if math.fsum(error[rows, chosen]) > allowed:  # by rounding
            chosen[layer] = before
            return chosen


def with_one_tau(curves: Curves, density: float) -> Curves:
    """The curves with one choice more, the last: the same tau for all layers, for a share of all elements."""
    log_taus = np.log(curves.taus)
    wanted = density * float(curves.elements.sum())
    low, common = float(log_taus.min()), float(log_taus.max())
    for _ in range(_BISECTIONS):
        middle = (low + common) / 2
        sent, _ = _at(curves, log_taus, middle)
        if np.cumsum(curves.elements * sent)[-1] > wanted:  # in order
            low = middle
        else:
            common = middle
    sent, errors = _at(curves, log_taus, common)
    tau = np.full(curves.elements.size, math.exp(common))
    tau = np.clip(tau, curves.taus[:, -1], curves.taus[:, 0])
    columns = (curves.sent, sent), (curves.taus, tau), (curves.errors, errors)
    return Curves(curves.elements, *map(np.column_stack, columns))


def _at(curves: Curves, log_taus: Floats, log_tau: float) -> tuple[Floats, Floats]:
    """Shares and errors of all layers at one tau, float64 [L]: between two choices on a straight line."""
    rows, last = np.arange(curves.elements.size), log_taus.shape[1] - 1
    after = np.clip((log_taus > log_tau).sum(axis=1), 1, last)
    high, low = log_taus[rows, after - 1], log_taus[rows, after]
    width = np.where(high > low, high - low, 1.0)
    part = np.clip((high - log_tau) / width, 0.0, 1.0)

    def between(of: Floats) -> Floats:
        start = of[rows, after - 1]
        return np.asarray(start + part * (of[rows, after] - start))

    return between(curves.sent), between(curves.errors)


# The policy


@dataclass(slots=True)
class AllocatedMemory(DensityMemory):
    """The memory of one parameter."""

    share: float | None = None
    """What was decided; the whole budget's before that."""
    elements: int = 0
    """How many it has; 0 before anything was sent."""
    sampled: int | None = None
    """The iteration of a sample that waits for the decision."""
    curve: list[float] | None = None
    """What the sample led to, float64 [3 * CHOICES], see `allocation.curve_of`."""


class AllocatedTau(TargetDensity):
    """A tau for each layer: together they take the fewest bits at the error that one tau would have.

    In an iteration in which densities are due every parameter's sample leaves its curve in its memory. The
    next iteration begins with the decision, whichever bucket comes first, and forgets the curves. Should
    there be none, the decision waits until densities are due again.
    """

    first_field = "density"
    memory = AllocatedMemory

    kind: Literal["allocate"] = "allocate"
    density: Share
    """The error budget: the error that one tau for all layers would have at this density."""
    every: int = Field(default=400, ge=1)
    """Iterations from one allocation to the next. In between, each tau is corrected by what was sent."""

    def share(self, iteration: int, memory: AllocatedMemory) -> float:
        """See `TargetDensity.share`; before the first decision that of all layers together."""
        return self.density if memory.share is None else memory.share

    def estimate(self, part: Part, iteration: int, memory: AllocatedMemory, method: Sender) -> float:
        magnitudes = magnitudes_of(part)
        if self.due(iteration):
            memory.sampled = iteration
            if magnitudes.size:
                memory.curve = curve_of(magnitudes, self.density, method.sends).ravel().tolist()
        return reached_by(part, memory.target)

    def begin(self, part: Part, sent: int, memory: AllocatedMemory) -> None:
        memory.elements = part.elements

    def decide(
        self,
        due: Sequence[AllocatedMemory],
        iteration: int,
        memories: Mapping[str, AllocatedMemory],
        method: Sender,
    ) -> None:
        every = self.every  # the shortest check: most iterations decide nothing
        if iteration % every > 1 and (
            iteration > every or not any(map(self.due, (iteration - 1, iteration)))
        ):
            return

        def waits(memory: AllocatedMemory) -> bool:
            return memory.sampled is not None and memory.sampled < iteration

        if not any(map(waits, due)):
            return
        waiting = [memories[name] for name in sorted(memories) if waits(memories[name])]
        ready = [memory for memory in waiting if memory.curve is not None and memory.elements]
        if ready:
            taus, shares = allocate(_curves(ready), self.density, method.value_bits)
            for memory, tau, share in zip(ready, taus.tolist(), shares.tolist(), strict=True):
                memory.tau, memory.share = as_tau(tau), share
                memory.set_target(share, memory.elements)
        for memory in waiting:
            memory.sampled = memory.curve = None


def _curves(memories: Sequence[AllocatedMemory]) -> Curves:
    curves = np.array([memory.curve for memory in memories]).reshape(len(memories), 3, CHOICES)
    elements = np.array([memory.elements for memory in memories], np.float64)
    return Curves(elements, *(np.ascontiguousarray(curves[:, row]) for row in range(3)))
