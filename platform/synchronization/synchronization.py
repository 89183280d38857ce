"""The interface of the synchronization modes: how workers learn from a batch and stay in agreement."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from taugrad.compressors import Totals
from taugrad.compressors.exchange.lockstep import Coroutine, run
from taugrad.compressors.exchange.worker_group import WorkerGroup

from ..data.batch_plan import Position
from ..data.feeding import Batch
from .ledger import Iteration, Ledger, Links, Notes


@dataclass(frozen=True)
class StepContext:
    """What an iteration needs to know in addition to its examples."""

    position: Position
    """In the run."""
    last: bool
    """Whether it is the run's last one."""
    observe: bool
    """Whether to note statistics of worker 0's gradients."""


class Synchronization(ABC):
    """This process's worker, or its simulated ones, and how they synchronize with the others."""

    ranks: Sequence[int]
    """Ranks of the workers that this process runs, ascending."""
    workers: int
    """How many there are everywhere."""
    model: nn.Module
    """What the workers agreed on last."""
    own_models: bool = False
    """Whether workers train models of their own, which run ahead of `model`; losses are those of these."""

    @abstractmethod
    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        """Every worker here learns from its part of a batch, one per rank of this process.

        Returns the ledger's entry, which the next `flush` completes. Where workers do not wait for one
        another, the next `sync_model` does, and nothing else may make them wait. Raises
        taugrad.compressors.NonFiniteGradient: a gradient holds NaN or Inf and the method refuses that;
        taugrad.compressors.CorruptMessage: a worker received bytes that are no valid message.
        """

    @property
    @abstractmethod
    def totals(self) -> Totals:
        """The ledger of all iterations that are complete; a copy."""

    @abstractmethod
    def flush(self) -> None:
        """Completes the ledger's entries by what all workers counted; all processes call this together."""

    @abstractmethod
    def links(self) -> Links | None:
        """What went over each link since the run began, on every process; all must call this together.

        None where the transport decides over which links bytes go.
        """

    def sync_model(self) -> None:  # noqa: B027 - most modes have nothing to do
        """Makes `model` what the workers agreed on last.

        All processes must call this together. It is called before the model is evaluated or saved, and may be
        called again at any time.
        """

    @abstractmethod
    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common, for worker 0 to save after `sync_model`: numbers and tensors."""

    @abstractmethod
    def worker_state(self) -> dict[str, Any]:
        """What only this process's workers have."""

    @abstractmethod
    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        """Takes over both; raises KeyError, RuntimeError or ValueError where they do not fit."""

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what another number of workers saved, if the mode can.

        `shared` is as `shared_state` gave it, `workers` as `worker_state` did to each of their processes, by
        rank. Raises ValueError: it cannot; ValueError, KeyError or RuntimeError: the states do not fit.
        """
        raise ValueError("each worker's residual belongs to its part of the data")


class OneWorker(Synchronization):
    """A process's only worker, or a simulated one.

    Attributes:
        rank: the worker's.
        ledger: the worker's.
    """

    def __init__(self, rank: int, workers: int, elements: int = 0, notes: Sequence[str] = ()) -> None:
        """Begins a ledger of a model of so many elements; for `notes` see `Ledger`."""
        self.rank, self.ranks, self.workers = rank, [rank], workers
        self.ledger = Ledger(workers, elements, notes)

    @property
    def totals(self) -> Totals:
        return Totals(**self.ledger.totals.state_dict())


class WorkerInLockstep(OneWorker):
    """A worker whose part in what all do together are coroutines; a real one runs them alone."""

    def __init__(self, group: WorkerGroup, elements: int, notes: Sequence[str] = ()) -> None:
        super().__init__(group.rank, group.workers, elements, notes)
        self._group = group

    @abstractmethod
    def iteration(self, batch: Batch, context: StepContext) -> Coroutine[Iteration]:
        """The worker's part of `iterate`."""

    def agree(self) -> Coroutine[None]:
        """The worker's part of `sync_model`."""
        yield None

    def complete_ledger(self) -> Coroutine[Notes]:
        """The worker's part of `flush`; returns the notes of all workers, [workers, iterations]."""
        rows = yield from self._group.gather(self.ledger.row())
        return self.ledger.complete(rows, self._complete)

    def _complete(self, iteration: Iteration, notes: Notes, own: np.void) -> None:
        """Completes an entry with what only this mode notes."""

    def gathered_links(self) -> Coroutine[Links | None]:
        """The worker's part of `links`."""
        return Links.of((yield from self._group.gather(Links.row(self.ledger.traffic))))

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        return run(self.iteration(batches[0], context))

    def sync_model(self) -> None:
        run(self.agree())

    def flush(self) -> None:
        if self.ledger.begun:
            run(self.complete_ledger())

    def links(self) -> Links | None:
        return run(self.gathered_links())
