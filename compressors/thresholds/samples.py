"""Samples of the magnitudes of parameters, from which policies find thresholds."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

from ..lazy import np
from ..ops.array import Floats32
from ..ops.interface import LARGEST_TAU, SMALLEST_TAU, Batch, Ops, Readback
from ..ops.parts import Part

SAMPLE = 2**14
"""Elements of a sample of a parameter, at most."""
_FLOAT32 = struct.Struct("f")


def as_tau(tau: float) -> float:
    """The nearest number that messages can carry as tau, a float32; 1 for a NaN or an infinity."""
    if not math.isfinite(tau):
        return 1.0
    nearest: float = _FLOAT32.unpack(_FLOAT32.pack(min(max(tau, SMALLEST_TAU), LARGEST_TAU)))[0]
    return nearest


def magnitudes_of(part: Part) -> Floats32:
    """float32 [SAMPLE at most], the finite ones among a sample of magnitudes of residual + gradient."""
    assert part.magnitudes is not None, "needs_sample must say that they are wanted"
    return part.magnitudes


def rank_at(density: float, m: int) -> int:
    """The rank, from 1, of the magnitude that a share of m reaches."""
    return max(1, math.ceil(round(density * m, 6)))  # rounded first, as 0.07 * 100 is a little more than 7


def with_samples(
    parts: Sequence[Part],
    wanted: Sequence[bool],
    batch: Batch,
    ops: Ops,
    shares: Sequence[float] | None = None,
) -> list[Part]:
    """The parameters of a batch, the wanted ones with a sample of their magnitudes.

    With shares, only with the magnitude that a share of the sample reaches (`Part.reached`). Waits once for
    all; twice with shares if a sample is not finite.
    """
    numbers = np.flatnonzero(np.array(wanted, np.bool_))
    found = list(parts)
    if shares is not None and numbers.size:
        sampled = batch.select(numbers)
        counts = np.minimum(sampled.sizes, SAMPLE).tolist()
        pairs = zip(numbers.tolist(), counts, strict=True)
        ranks = [rank_at(shares[number], count) for number, count in pairs]
        reached, broken = ops.ranked_samples(sampled, counts, ranks)
        for number, magnitude in zip(numbers.tolist(), reached.tolist(), strict=True):
            found[number] = replace(parts[number], reached=magnitude)
        numbers = numbers[broken]
    if numbers.size:
        readback, sampled = Readback(ops), batch.select(numbers)
        samples = ops.samples(sampled, np.minimum(sampled.sizes, SAMPLE).tolist(), readback)
        readback.fetch()
        for number, sample in zip(numbers.tolist(), samples(), strict=True):
            found[number] = replace(parts[number], magnitudes=np.abs(sample[np.isfinite(sample)]))
    return found


def reached_by(part: Part, share: float) -> float:
    """What a share of a part's sample reaches, between the smallest and the largest tau."""
    if part.reached is not None:
        return as_tau(part.reached)
    magnitudes = magnitudes_of(part)
    place = magnitudes.size - rank_at(share, magnitudes.size)
    return as_tau(float(np.partition(magnitudes, place)[place])) if place >= 0 else SMALLEST_TAU
