"""The parameters of a bucket: what passes work on, and what each of them sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan

from ..lazy import np
from .array import Floats32, Floats64, Numbers, Tensor


@dataclass(slots=True)
class Part:
    """One parameter's share of a bucket."""

    name: str
    gradient: Tensor
    """Floating point [numel], contiguous, in the bucket."""
    residual: Tensor | None = None
    """float32 [numel] on the same device; None if what is not sent is dropped."""
    velocity: Tensor | None = None
    """float32 [numel] on the same device, if momentum is corrected; otherwise None."""
    rms: float | None = None
    """Root mean square of the loss's gradient, if something else is sent instead, such as weights."""
    weights: Tensor | None = None
    """Floating point [numel] on the same device, the agreed weights, in local steps."""
    magnitudes: Floats32 | None = None
    """Finite magnitudes of a sample of residual + gradient, on the host, where they decide what is sent."""
    reached: float | None = None
    """In place of these what a share of them reaches, where that decides."""
    start: int = 0
    """Of a slice of a parameter, the position of its first element."""

    @property
    def elements(self) -> int:
        """numel."""
        return self.gradient.numel()


@dataclass(slots=True)
class PartTally:
    """What one parameter sent."""

    name: str
    elements: int
    sent: int
    residual_squares: float
    tau: float | None = None
    """The threshold that was used; None for rules without one."""
    paper_bits: int = 0
    """Value bits of what was sent."""


def by_parameter(tallies: Iterable[PartTally]) -> list[PartTally]:
    """Sums of the tallies of a parameter's slices, by name."""
    sums = []
    for name, group in groupby(sorted(tallies, key=lambda tally: tally.name), key=lambda tally: tally.name):
        whole, taus, weights = PartTally(name, 0, 0, 0.0), 0.0, 0
        for tally in group:
            whole.elements += tally.elements
            whole.sent += tally.sent
            whole.residual_squares += tally.residual_squares
            whole.paper_bits += tally.paper_bits
            if tally.tau is not None:
                taus, weights = taus + tally.tau * tally.elements, weights + tally.elements
        whole.tau = taus / weights if weights else None
        sums.append(whole)
    return sums


@dataclass(slots=True, eq=False)
class Tallies:
    """What the parameters of a bucket send: columns, which read as one record of each parameter."""

    names: Sequence[str]
    elements: Sequence[int]
    sent: Numbers
    residual_squares: Floats64
    taus: Floats32
    """NaN where there is none."""
    paper_bits: Numbers

    @classmethod
    def of(cls, names: Sequence[str], elements: Sequence[int]) -> Tallies:
        """Nothing yet."""
        sent, bits = np.zeros((2, len(names)), np.int64)
        taus = np.full(len(names), np.nan, np.float32)
        return cls(names, elements, sent, np.zeros(len(names)), taus, bits)

    def __iter__(self) -> Iterator[PartTally]:
        taus = [None if isnan(tau) else tau for tau in self.taus.tolist()]
        columns = self.sent.tolist(), self.residual_squares.tolist(), taus, self.paper_bits.tolist()
        return map(PartTally, self.names, self.elements, *columns)
