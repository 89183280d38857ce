"""What was sent in each iteration, and how old it was. Complete once the workers have shared their notes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors import Step, Totals
from taugrad.compressors.observe import GradientStatistics

from ...tracking import names
from ...training.records import layer_metrics
from ..base import Outcome
from ..rounds import Traffic
from .worker import Staleness, Stepped, Worker

_NOTES = ("bytes", "elements", "paper_bits", "refused", "messages", "ages", "most")
"""Of one worker's iteration: what its message had, and of the messages that it applied before."""
_EACH_WORKER = 64
"""Up to this number of workers, the staleness of each worker's messages is logged."""


@dataclass
class Iteration:
    """What this process knows of one iteration of its workers."""

    step: Step
    notes: NDArray[np.int64]
    """int64 [workers here, notes]."""
    losses: list[float]
    """Of the workers here."""
    squares: list[float]
    """Of their residuals."""
    statistics: dict[str, GradientStatistics] = field(default_factory=dict)
    """Of worker 0's gradient, where it was observed."""


class Ledger:
    """Iterations since the last drain, and the sums of those before.

    Attributes:
        totals: of all complete iterations.
        traffic: of all complete iterations, with the traffic of each link.
        outcomes: of complete iterations that have not been asked for yet.
    """

    def __init__(self, ranks: Sequence[int], workers: int, elements: int) -> None:
        """Begins an empty one.

        Args:
            ranks: of this process's workers.
            workers: how many there are everywhere.
            elements: of the model.
        """
        self._ranks, self._workers, self._elements = list(ranks), workers, elements
        self.totals, self.traffic = Totals(), Traffic(workers)
        self.outcomes: list[Outcome] = []
        self._open: list[Iteration] = []

    @property
    def begun(self) -> int:
        """Iterations since the last drain."""
        return len(self._open)

    def taken(self) -> list[Outcome]:
        """Returns the outcomes and forgets them."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def load(self, totals: dict[str, int], traffic: dict[str, Any]) -> None:
        """Restores the sums; no iteration is open then."""
        self.totals = Totals.from_state_dict(totals)
        self.traffic.load_state_dict(traffic)
        self.outcomes, self._open = [], []

    def begin(self) -> Step:
        """Begins an iteration."""
        step = Step(steps=1, elements=self._elements * self._workers)
        here = len(self._ranks)
        notes = np.zeros((here, len(_NOTES)), np.int64)
        notes[:, _NOTES.index("refused")] = -1
        self._open.append(Iteration(step, notes, [0.0] * here, [0.0] * here))
        return step

    def note(self, number: int, local: int, worker: Worker, stepped: Stepped) -> None:
        """Notes a worker's own step.

        Args:
            number: the iteration, since the last drain.
            local: which of this process's workers.
            worker: that worker.
            stepped: the result of the step.
        """
        iteration = self._open[number]
        iteration.losses[local] = stepped.loss
        iteration.statistics |= stepped.statistics
        iteration.notes[local, :4] = (
            stepped.message.nbytes,
            sum(tally.sent for tally in stepped.tallies),
            sum(tally.paper_bits for tally in stepped.tallies),
            stepped.refused,
        )
        step = iteration.step
        iteration.squares[local] = worker.compressor.residual_squares()
        step.keeps_residuals |= bool(worker.compressor.feedback.residuals)
        if not local:
            step.layers = stepped.tallies

    def note_ages(self, number: int, local: int, staleness: Staleness) -> None:
        """Notes what a worker applied before a step, or with number -1 in a drain after the last one."""
        notes = self._open[number].notes[local]
        notes[4] += staleness.messages
        notes[5] += staleness.ages
        notes[6] = max(notes[6], staleness.most)

    def own_notes(self) -> NDArray[np.int64]:
        """int64 [workers here, iterations, notes], since the last drain."""
        return np.stack([each.notes for each in self._open], axis=1)

    def close(self, notes: NDArray[np.int64], parameters: Sequence[str], drained_s: float) -> None:
        """Completes the iterations since the last drain.

        Args:
            notes: int64 [workers, iterations, notes], all workers'.
            parameters: their names.
            drained_s: how long the drain after the last of them took; mean of the workers here.
        """
        others = ~np.eye(self._workers, dtype=bool)
        for number, iteration in enumerate(self._open):
            found = dict(zip(_NOTES, notes[:, number].T, strict=True))
            step = iteration.step
            step.wire_bytes = int(found["bytes"].sum())
            step.received_bytes = (self._workers - 1) * step.wire_bytes
            step.messages = self._workers * (self._workers - 1)
            # In rank order, as processes add theirs up.
            step.residual_squares = sum(iteration.squares) / len(iteration.squares)
            step.sent = int(found["elements"].sum())
            step.paper_bits = int(found["paper_bits"].sum())
            for rank in np.flatnonzero(found["refused"] >= 0).tolist():
                step.skip(parameters[int(found["refused"][rank])], rank)
            self.totals.add(step)
            self.traffic.link_bytes += found["bytes"][:, None] * others
            self.traffic.link_messages += others
            metrics = layer_metrics(step, iteration.statistics) if iteration.statistics else {}
            metrics |= _staleness(found["messages"], found["ages"], found["most"])
            ends = number + 1 == len(self._open)
            loss = sum(iteration.losses) / len(iteration.losses)
            self.outcomes.append(Outcome(loss, metrics, drained_s if ends else 0.0))
        sums = dict(zip(_NOTES, notes.sum(axis=1).T, strict=True))
        if self._workers <= _EACH_WORKER:
            # By worker only from time to time: workers differ in speed, but hardly from step to step.
            for rank, (messages, ages) in enumerate(zip(sums["messages"], sums["ages"], strict=True)):
                if messages:
                    self.outcomes[-1].metrics[names.worker_metric(rank, "staleness")] = float(ages / messages)
        self._open = []


def _staleness(
    messages: NDArray[np.int64], ages: NDArray[np.int64], most: NDArray[np.int64]
) -> dict[str, float]:
    """By MLflow name; nothing where no message was applied."""
    if not messages.sum():
        return {}
    return {
        names.COMM_STALENESS: float(ages.sum() / messages.sum()),
        names.COMM_STALENESS_MOST: float(most.max()),
    }
