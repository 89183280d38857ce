"""Samples of the magnitudes of parameters, by which thresholds are decided."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..bucket.layout import Part
from ..ops.cpu.topk import magnitude_at, rank_at
from ..ops.interface import Batch, Ops
from ..ops.readback import Readback
from .base import SAMPLE, as_tau, magnitudes_of


def with_magnitudes(
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
    with_samples = list(parts)
    if shares is not None and numbers.size:
        sampled = batch.select(numbers)
        counts = np.minimum(sampled.sizes, SAMPLE).tolist()
        ranks = [
            rank_at(shares[number], count) for number, count in zip(numbers.tolist(), counts, strict=True)
        ]
        reached, broken = ops.ranked_samples(sampled, counts, ranks)
        for number, magnitude in zip(numbers.tolist(), reached.tolist(), strict=True):
            with_samples[number] = replace(parts[number], reached=magnitude)
        numbers = numbers[broken]
    if numbers.size:
        readback, sampled = Readback(ops), batch.select(numbers)
        samples = ops.samples(sampled, np.minimum(sampled.sizes, SAMPLE).tolist(), readback)
        readback.fetch()
        for number, sample in zip(numbers.tolist(), samples(), strict=True):
            with_samples[number] = replace(parts[number], magnitudes=np.abs(sample[np.isfinite(sample)]))
    return with_samples


def reached_by(part: Part, share: float) -> float:
    """What a share of a part's sample reaches, between the smallest and the largest tau."""
    if part.reached is not None:
        return as_tau(part.reached)
    return as_tau(float(magnitude_at(magnitudes_of(part), share)))
