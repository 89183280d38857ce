"""The ledger: one entry an iteration, whole at once, or once the workers have shared their notes.

Where workers wait for one another, each knows at the end of an iteration what all have sent. Elsewhere an
entry is completed later: all workers gather the notes of all, and complete their entries alike.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors import Step, Totals
from taugrad.compressors.exchange.traffic import Traffic
from taugrad.compressors.observe import GradientStatistics

SHOWN_WORKERS = 64
"""Up to this number of workers, metrics of each one are logged."""
_SUMS = ("wire_bytes", "received_bytes", "messages", "elements", "paper_bits")
"""Notes that every mode has: sums over the workers are in the ledger."""
_HERE = ("loss", "squares")
"""Likewise: the loss of a worker's part, and the sum of squares of its residuals."""
Notes = NDArray[np.void]
"""One row a worker, with a float64 for each name; exact for counts up to 2^53."""


@dataclass
class Iteration:
    """The entry of one iteration."""

    step: Step
    """Seconds are means over this process's workers."""
    loss: float = 0.0
    """The mean of the weighted losses of this process's workers, or of all where that says so."""
    statistics: dict[str, GradientStatistics] = field(default_factory=dict)
    """By parameter name, of worker 0's gradient, where it was observed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """By MLflow name: those that only this mode has."""
    whole: bool = False
    """Whether this is all; else the next `sync_model` completes it."""
    closing_s: float = 0.0
    """Seconds of what came after the iteration, which `step` has waiting and decoding of; mostly 0."""
    always_under_way: bool = False
    """Whether messages are under way all the time, not in rounds."""


class Ledger:
    """Entries that are not whole yet, and the sums of those that are.

    Attributes:
        totals: of all whole entries.
        traffic: of the run, with that of each link.
    """

    def __init__(self, here: int, workers: int, elements: int, notes: Sequence[str] = ()) -> None:
        """Begins an empty one.

        Args:
            here: workers of this process.
            workers: how many there are everywhere.
            elements: of the model.
            notes: what workers of this mode note in addition to what all do.
        """
        self._here, self._workers, self._elements = here, workers, elements
        self._dtype = np.dtype([(name, np.float64) for name in (*_SUMS, *_HERE, *notes)])
        self.totals, self.traffic = Totals(), Traffic(workers)
        self._open: list[tuple[Iteration, Notes]] = []

    @property
    def begun(self) -> int:
        """Entries that are not whole."""
        return len(self._open)

    @property
    def now(self) -> Iteration:
        """The latest entry that is not whole."""
        return self._open[-1][0]

    def note(self, local: int, number: int = -1) -> np.void:
        """What a worker here notes about an iteration, to be changed in place; all 0 at first.

        The iteration is given by its number among those that are not whole; by default it is the latest.
        """
        row: np.void = self._open[number][1][local]
        return row

    def entry(self, number: int) -> Iteration:
        """An entry, by its number among those that are not whole."""
        return self._open[number][0]

    def begin(self, *, always_under_way: bool = False) -> Iteration:
        """Begins an iteration; what is not sent in it counts as elements, too."""
        step = Step(steps=1, elements=self._elements * self._workers)
        iteration = Iteration(step, always_under_way=always_under_way)
        self._open.append((iteration, np.zeros(self._here, self._dtype)))
        return iteration

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for the others; simulated workers never wait."""
        began = perf_counter()
        yield
        if self._here < self._workers:
            waited = perf_counter() - began
            self.now.step.exchange_s += waited
            self.now.step.blocked_s += waited

    def end(self, loss: float) -> Iteration:
        """Ends the latest iteration, which is whole already."""
        ((iteration, _),), self._open = self._open, []
        iteration.loss, iteration.whole = loss, True
        self.totals.add(iteration.step)
        return iteration

    def close(
        self,
        gather: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        complete: Callable[[Iteration, Notes, Notes], None],
    ) -> NDArray[np.void]:
        """Completes all entries; all processes call this together.

        Args:
            gather: gives float64 [workers, ...], of all workers, for [workers here, ...].
            complete: called with each entry, the notes of all workers and those of the workers here.

        Returns:
            [workers, iterations], all notes.
        """
        own = np.stack([notes for _, notes in self._open], axis=1)
        with self.waiting():
            gathered = gather(own.view(np.float64).reshape(self._here, len(self._open), -1))
        every: NDArray[np.void] = np.ascontiguousarray(gathered).view(self._dtype)[..., 0]
        for number, (iteration, here) in enumerate(self._open):
            step, notes = iteration.step, every[:, number]
            sums = {name: int(notes[name].sum()) for name in _SUMS}
            step.wire_bytes, step.received_bytes = sums["wire_bytes"], sums["received_bytes"]
            step.messages, step.sent, step.paper_bits = sums["messages"], sums["elements"], sums["paper_bits"]
            step.residual_squares = sum(here["squares"].tolist()) / self._here
            complete(iteration, notes, here)
            iteration.whole = True
            self.totals.add(step)
        self._open = []
        return every

    def load(self, totals: dict[str, int]) -> None:
        """Restores the sums; no entry is open then."""
        self.totals = Totals.from_state_dict(totals)
        self._open = []
