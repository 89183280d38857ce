"""The ledger: one entry an iteration, of what this process's workers have counted, until it is flushed.

From time to time all processes gather the notes of all workers, and complete their entries alike.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors import Step, Totals
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.observe import GradientStatistics

SHOWN_WORKERS = 64
"""Up to this number of workers, metrics of each one are logged."""
_SUMS = ("elements", "sent", "paper_bits", "wire_bytes", "received_bytes", "messages")
"""Notes that every mode has: sums over the workers are in the ledger."""
_HERE = ("loss", "squares")
"""Likewise: the loss of a worker's part, and the sum of squares of its residuals."""
Notes = NDArray[np.void]
"""One row a worker, with a float64 for each name; exact for counts up to 2^53."""


@dataclass(frozen=True)
class Links:
    """What went over each link since the run began, of all processes."""

    messages: NDArray[np.int64]
    """int64 [workers, workers], from row to column."""
    nbytes: NDArray[np.int64]
    """int64 [workers, workers], of messages: what the ledger counts as received."""

    @classmethod
    def of(
        cls, traffic: Traffic, ranks: Sequence[int], gather: Callable[[NDArray[np.float64]], NDArray[Any]]
    ) -> "Links | None":
        """What went over each link, from what each process counted; all must call this together.

        None where no message did: the transport of all-reduces decides about links.

        Args:
            traffic: of the workers here.
            ranks: theirs.
            gather: gives float64 [workers, ...], of all workers, for [workers here, ...].
        """
        here = list(ranks)
        rows = np.stack([traffic.link_messages[here], traffic.link_bytes[here]], axis=1)
        messages, nbytes = gather(rows.astype(np.float64)).astype(np.int64).swapaxes(0, 1)
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
    """Counts are of this process's workers until the ledger is flushed, and of all from then on; seconds are
    means over this process's workers."""
    loss: float = 0.0
    """The mean of the weighted losses of this process's workers, or of all where that says so."""
    statistics: dict[str, GradientStatistics] = field(default_factory=dict)
    """By parameter name, of worker 0's gradient, where it was observed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """By MLflow name: those that only this mode has."""
    closing_s: float = 0.0
    """Seconds of what came after the iteration, which `step` has waiting and decoding of; mostly 0."""
    always_under_way: bool = False
    """Whether messages are under way all the time, not in rounds: workers wait for nobody then, but in
    `sync_model`, which completes the entry."""


class Ledger:
    """Entries that are not complete yet, and the sums of those that are.

    Attributes:
        totals: of all workers, in all complete entries.
        traffic: of this process's workers, with that of each link.
    """

    def __init__(
        self,
        gather: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        here: int,
        workers: int,
        elements: int,
        notes: Sequence[str] = (),
    ) -> None:
        """Begins an empty one, for `here` of `workers` workers and a model of so many elements.

        `gather` gives float64 [workers, ...], of all workers, for [workers here, ...]. `notes` are what
        workers of this mode note in addition to what all do.
        """
        self._gather, self._here, self._workers, self._elements = gather, here, workers, elements
        self._dtype = np.dtype([(name, np.float64) for name in (*_SUMS, *_HERE, *notes)])
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

    def note(self, local: int, number: int = -1) -> np.void:
        """What a worker here notes about an iteration, to be changed in place; all 0 at first.

        The iteration is given by its number among those that are not complete; by default it is the latest.
        """
        row: np.void = self._open[number][1][local]
        return row

    def entry(self, number: int) -> Iteration:
        """An entry, by its number among those that are not complete."""
        return self._open[number][0]

    def begin(self, step: Step | None = None, *, always_under_way: bool = False) -> Iteration:
        """Begins an iteration; what is not sent in it counts as elements, too.

        `step` has what this process's workers have counted already, elements included.
        """
        step = Step(steps=1, elements=self._elements * self._here) if step is None else step
        iteration = Iteration(step, always_under_way=always_under_way)
        self._open.append((iteration, np.zeros(self._here, self._dtype)))
        return iteration

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for the others; simulated workers never wait."""
        step, began = self.now.step, perf_counter()
        yield
        if self._here < self._workers:
            waited = perf_counter() - began
            step.exchange_s += waited
            step.blocked_s += waited

    def flush(
        self, complete: Callable[[Iteration, Notes, Notes], None] = lambda *_: None
    ) -> NDArray[np.void]:
        """Completes all entries with what all workers have counted; all processes call this together.

        `complete` is called with each entry, the notes of all workers and those of the workers here. Returns
        all notes, [workers, iterations].
        """
        for iteration, notes in self._open:
            for name in _SUMS:
                notes[name][0] += getattr(iteration.step, name)
        rows = np.stack([notes for _, notes in self._open], axis=1)
        gathered = self._gather(rows.view(np.float64).reshape(self._here, len(self._open), -1))
        every: NDArray[np.void] = np.ascontiguousarray(gathered).view(self._dtype)[..., 0]
        for number, (iteration, here) in enumerate(self._open):
            for name in _SUMS:
                setattr(iteration.step, name, int(every[name][:, number].sum()))
            complete(iteration, every[:, number], here)
            self.totals.add(iteration.step)
        self._open = []
        return every

    def load(self, totals: dict[str, int]) -> None:
        """Restores the sums; no entry is open then."""
        self.totals = Totals.from_state_dict(totals)
        self._open = []
