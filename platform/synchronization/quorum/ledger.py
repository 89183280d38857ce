"""What was sent, and who was in which round. Complete once the workers have shared their notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors import Step, Totals
from taugrad.compressors.observe import GradientStatistics

from ...tracking import names
from ...training.records import layer_metrics
from ..base import Outcome

_EACH_WORKER = 64
"""Up to this number of workers, it is logged how often each was left out."""


@dataclass
class Note:
    """The notes of one worker about one iteration."""

    wire_bytes: int = 0
    """Bytes handed over by it, or by others to it alone; what goes to all counts once."""
    received_bytes: int = 0
    """The same as they arrive: once for each receiver."""
    messages: int = 0
    caught_up_bytes: int = 0
    """Bytes of agreed weights that it took over from another worker."""
    elements: int = 0
    paper_bits: int = 0
    left_out: int = 0
    """Whether a round closed without it."""
    member: int = 0
    """Whether a round closed with it."""
    lost: int = 0
    """Whether the worker was lost."""
    loss: float = 0.0
    """The loss of its part of the batch, times the part's weight."""
    weight: float = 0.0
    """The weight of the part that it learned from."""
    lost_sum: float = 0.0
    """Sum of all that a lost worker had not sent."""
    lost_squares: float = 0.0
    """Sum of squares of the same."""


_WHOLE = ("wire_bytes", "received_bytes", "messages", "caught_up_bytes", "elements", "paper_bits")
_COUNTS = (*_WHOLE, "left_out", "member", "lost")
_FLOATS = ("loss", "weight", "lost_sum", "lost_squares")


@dataclass
class Iteration:
    """What this process knows about one iteration."""

    step: Step
    notes: list[Note]
    """Of the workers here."""
    squares: float = 0.0
    """Of their residuals, mean of the workers here."""
    statistics: Mapping[str, GradientStatistics] = field(default_factory=dict)
    """Of worker 0's gradient, where it was observed."""


class Ledger:
    """Iterations since all workers last met, and the sums of those before.

    Attributes:
        totals: of all complete iterations.
        lost_sum: the sum of all elements that lost workers had not sent.
        outcomes: of complete iterations that have not been asked for yet.
    """

    def __init__(self, here: int, workers: int, elements: int) -> None:
        """Begins an empty one.

        Args:
            here: workers of this process.
            workers: how many there are everywhere.
            elements: of the model.
        """
        self._here, self._workers, self._elements = here, workers, elements
        self.totals = Totals()
        self.lost_sum = 0.0
        self.outcomes: list[Outcome] = []
        self._open: list[Iteration] = []

    @property
    def begun(self) -> int:
        """Iterations since all met."""
        return len(self._open)

    @property
    def now(self) -> Iteration:
        """The current iteration."""
        return self._open[-1]

    def begin(self) -> Step:
        """Begins an iteration."""
        step = Step(steps=1, elements=self._elements * self._workers)
        self._open.append(Iteration(step, [Note() for _ in range(self._here)]))
        return step

    def taken(self) -> list[Outcome]:
        """Returns the outcomes and forgets them."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def own_notes(self) -> NDArray[np.int64]:
        """int64 [workers here, iterations, notes], since all met."""
        rows = [[self._row(each.notes[local]) for each in self._open] for local in range(self._here)]
        return np.array(rows, np.int64)

    @staticmethod
    def _row(note: Note) -> list[int]:
        floats = np.array([getattr(note, name) for name in _FLOATS])
        bits: list[int] = floats.view(np.int64).tolist()
        return [getattr(note, name) for name in _COUNTS] + bits

    def close(self, notes: NDArray[np.int64], met_s: float) -> None:
        """Completes the iterations since all workers met.

        Args:
            notes: int64 [workers, iterations, notes], of all workers.
            met_s: how long the meeting after the last of them took.
        """
        left_out = np.zeros(self._workers)
        for number, iteration in enumerate(self._open):
            rows = notes[:, number]
            found = dict(zip(_COUNTS, rows.T, strict=False))
            floats = np.ascontiguousarray(rows[:, len(_COUNTS) :]).view(np.float64)
            self._fill(iteration.step, {name: int(found[name].sum()) for name in _WHOLE})
            iteration.step.residual_squares = iteration.squares
            self.totals.add(iteration.step)
            left_out += found["left_out"]
            # In rank order, on every process.
            loss, weight, lost_sum, lost_squares = (sum(column) for column in floats.T.tolist())
            self.lost_sum += lost_sum
            metrics = (
                layer_metrics(iteration.step, dict(iteration.statistics)) if iteration.statistics else {}
            )
            if found["member"].any():
                metrics[names.ROUND_MEMBERS] = float(found["member"].sum())
                metrics[names.ROUND_LEFT_OUT] = float(found["left_out"].sum())
            if found["caught_up_bytes"].any():
                metrics[names.ROUND_CAUGHT_UP_BYTES] = float(found["caught_up_bytes"].sum())
            if found["lost"].any():
                metrics[names.ROUND_LOST] = float(found["lost"].sum())
                metrics[names.ROUND_LOST_RMS] = float((lost_squares / self._elements) ** 0.5)
            ends = number + 1 == len(self._open)
            self.outcomes.append(Outcome(loss / weight if weight else 0.0, metrics, met_s if ends else 0.0))
        if self._workers <= _EACH_WORKER:
            for rank, rounds in enumerate(left_out.tolist()):
                self.outcomes[-1].metrics[names.worker_metric(rank, "left_out")] = rounds
        self._open = []

    @staticmethod
    def _fill(step: Step, sums: Mapping[str, int]) -> None:
        step.wire_bytes, step.received_bytes = sums["wire_bytes"], sums["received_bytes"]
        step.messages, step.sent = sums["messages"], sums["elements"]
        step.paper_bits = sums["paper_bits"]


def sums_of(tensors: Sequence[NDArray[np.float32]]) -> tuple[float, float]:
    """The sum of all elements, and of their squares, in float64."""
    whole = [each.astype(np.float64) for each in tensors]
    return float(sum(each.sum() for each in whole)), float(sum((each**2).sum() for each in whole))
