"""A worker's ledger: one entry an iteration, of what it has counted, until it is flushed.

From time to time all workers gather their notes, and complete their entries alike.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors import Step, Totals
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.observe import GradientStatistics

SHOWN_WORKERS = 64
"""Up to this number of workers, metrics of each one are logged."""
_SUMS = ("elements", "sent", "paper_bits", "wire_bytes", "received_bytes", "messages")
"""Notes that every mode has: sums over the workers are in the ledger."""
_OWN = ("loss", "squares")
"""Likewise: the loss of a worker's part, and the sum of squares of its residuals."""
Notes = NDArray[np.void]
"""One per worker, with a float64 for each name; exact for counts up to 2^53."""


@dataclass(frozen=True)
class Links:
    """What went over each link since the run began, of all workers."""

    messages: NDArray[np.int64]
    """int64 [workers, workers], from row to column."""
    nbytes: NDArray[np.int64]
    """int64 [workers, workers], of messages: what the ledger counts as received."""

    @staticmethod
    def row(traffic: Traffic) -> NDArray[np.float64]:
        """What a worker counted, for `of`: [2, workers]."""
        return np.stack([traffic.link_messages, traffic.link_bytes]).astype(np.float64)

    @classmethod
    def of(cls, rows: NDArray[np.float64]) -> "Links | None":
        """What went over each link, from the rows of all workers.

        None where no message did: the transport of all-reduces decides about links.
        """
        messages, nbytes = rows.astype(np.int64).swapaxes(0, 1)
        return cls(messages, nbytes) if messages.any() else None

    def to_csv(self) -> str:
        """Columns from, to, messages, bytes: a row for each ordered pair of ranks."""
        links = np.nonzero(~np.eye(len(self.nbytes), dtype=bool))
        rows = np.stack([*links, self.messages[links], self.nbytes[links]], axis=1).tolist()
        return "".join(f"{','.join(map(str, row))}\n" for row in [("from", "to", "messages", "bytes"), *rows])


@dataclass
class Iteration:
    """The entry of one iteration."""

    step: Step
    """Counts are of this worker until the ledger is flushed, and of all from then on."""
    loss: float = 0.0
    """This worker's weighted loss, or the mean of all workers' where that says so."""
    statistics: dict[str, GradientStatistics] = field(default_factory=dict)
    """By parameter name, of worker 0's gradient, where it was observed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """By MLflow name: those that only this mode has."""
    number: int = 0
    """Counted from 1 over the whole run: MLflow's step; the trainer sets it, and the next two."""
    data_s: float = 0.0
    """Seconds that the workers here waited for their examples."""
    iterate_s: float = 0.0
    """Seconds until the next iteration could begin; all seconds are means over the workers here."""
    closing_s: float = 0.0
    """Seconds of what came after the iteration, which `step` has waiting and decoding of; mostly 0."""
    always_under_way: bool = False
    """Whether messages are under way all the time, not in rounds: workers wait for nobody then, but in
    `sync_model`, which completes the entry."""


class Ledger:
    """A worker's entries that are not complete yet, and the sums of those that are.

    Attributes:
        totals: of all workers, in all complete entries.
        traffic: of this worker, with that of each link.
    """

    def __init__(self, workers: int, elements: int, notes: Sequence[str] = ()) -> None:
        """Begins an empty one, for a model of so many elements.

        `notes` are what workers of this mode note in addition to what all do.
        """
        self._elements = elements
        self._dtype = np.dtype([(name, np.float64) for name in (*_SUMS, *_OWN, *notes)])
        self.totals, self.traffic = Totals(), Traffic(workers)
        self._open: list[tuple[Iteration, Notes]] = []

    @property
    def begun(self) -> int:
        """Entries that are not complete."""
        return len(self._open)

    @property
    def now(self) -> Iteration:
        """The latest entry that is not complete."""
        return self._open[-1][0]

    def note(self, number: int = -1) -> np.void:
        """What the worker notes about an iteration, to be changed in place; all 0 at first.

        The iteration is given by its number among those that are not complete; by default it is the latest.
        """
        note: np.void = self._open[number][1][0]
        return note

    def entry(self, number: int) -> Iteration:
        """An entry, by its number among those that are not complete."""
        return self._open[number][0]

    def begin(self, step: Step | None = None, *, always_under_way: bool = False) -> Iteration:
        """Begins an iteration; what is not sent in it counts as elements, too.

        `step` has what the worker has counted already, elements included.
        """
        step = Step(steps=1, elements=self._elements) if step is None else step
        iteration = Iteration(step, always_under_way=always_under_way)
        self._open.append((iteration, np.zeros(1, self._dtype)))
        return iteration

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for the others."""
        step, began = self.now.step, perf_counter()
        yield
        waited = perf_counter() - began
        step.exchange_s += waited
        step.blocked_s += waited

    def row(self) -> NDArray[np.float64]:
        """What the worker has counted and noted, for `complete`: [entries, names]."""
        for iteration, note in self._open:
            for name in _SUMS:
                note[name] += getattr(iteration.step, name)
        notes = np.concatenate([note for _, note in self._open])
        return notes.view(np.float64).reshape(len(notes), -1)

    def complete(
        self,
        rows: NDArray[np.float64],
        complete: Callable[[Iteration, Notes, np.void], None] = lambda *_: None,
    ) -> Notes:
        """Completes all entries with the rows of all workers, [workers, entries, names].

        `complete` is called with each entry, the notes of all workers and this worker's. Returns all notes,
        [workers, entries].
        """
        notes: Notes = np.ascontiguousarray(rows).view(self._dtype)[..., 0]
        sums = {name: notes[name].sum(axis=0).astype(np.int64).tolist() for name in _SUMS}
        for number, (iteration, note) in enumerate(self._open):
            for name in _SUMS:
                setattr(iteration.step, name, sums[name][number])
            complete(iteration, notes[:, number], note[0])
            self.totals.add(iteration.step)
        self._open = []
        return notes

    def load(self, totals: dict[str, int]) -> None:
        """Restores the sums; no entry is open then."""
        self.totals = Totals.from_state_dict(totals)
        self._open = []
