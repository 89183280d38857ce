"""Simulated workers: all in one process, each as it would be in a process of its own, in lockstep."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from taugrad.compressors import Totals
from taugrad.compressors.exchange.lockstep import run_lockstep

from ..data.feeding import Batch
from .ledger import Iteration, Links
from .synchronization import StepContext, Synchronization, WorkerInLockstep


class SimulatedWorkers(Synchronization):
    """All workers of a run; they share what is the same on all, such as the model they agreed on.

    Attributes:
        by_rank: the workers.
    """

    def __init__(self, workers: Sequence[WorkerInLockstep]) -> None:
        """Takes charge of all workers, by rank."""
        self.by_rank, self.ranks, self.workers = list(workers), range(len(workers)), len(workers)
        self.model, self.own_models = workers[0].model, workers[0].own_models
        self._open: list[tuple[Iteration, list[Iteration]]] = []
        """Entries that are not complete, as one and by worker."""

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        pairs = zip(self.by_rank, batches, strict=True)
        entries = run_lockstep([worker.iteration(batch, context) for worker, batch in pairs])
        iteration = replace(entries[0])
        self._open.append((iteration, entries))
        _join(iteration, entries)
        return iteration

    @property
    def totals(self) -> Totals:
        return self.by_rank[0].totals

    def sync_model(self) -> None:
        began, last = perf_counter(), self._open[-1][0] if self._open else None
        run_lockstep([worker.agree() for worker in self.by_rank])
        if last is not None and not self.by_rank[0].ledger.begun:
            self._complete()
            last.closing_s = (perf_counter() - began) / self.workers

    def flush(self) -> None:
        if self.by_rank[0].ledger.begun:
            run_lockstep([worker.complete_ledger() for worker in self.by_rank])
            self._complete()

    def _complete(self) -> None:
        for iteration, entries in self._open:
            _join(iteration, entries)
        self._open = []

    def links(self) -> Links | None:
        return run_lockstep([worker.gathered_links() for worker in self.by_rank])[0]

    def shared_state(self) -> dict[str, Any]:
        return self.by_rank[0].shared_state()

    def worker_state(self) -> dict[str, Any]:
        state: dict[str, Any] = _joined([worker.worker_state() for worker in self.by_rank])
        return state

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        for worker in self.by_rank:
            worker.load(shared, local_state)

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        for worker in self.by_rank:
            worker.reshard(shared, workers)


def _join(iteration: Iteration, entries: Sequence[Iteration]) -> None:
    """Makes one entry of all workers': means of losses and seconds, worker 0's layers and statistics."""
    steps, workers = [entry.step for entry in entries], len(entries)
    iteration.loss = sum(entry.loss for entry in entries) / workers
    iteration.step = replace(
        steps[0],
        exchange_s=0.0,  # nobody waits
        blocked_s=0.0,
        compress_s=sum(step.compress_s for step in steps) / workers,
        decompress_s=sum(step.decompress_s for step in steps) / workers,
        residual_squares=sum(step.residual_squares for step in steps) / workers,
        keeps_residuals=any(step.keeps_residuals for step in steps),
    )


def _joined(states: Sequence[Any]) -> Any:
    """One state of all workers': what is by rank side by side, the rest as in the first."""
    first = states[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for state in states for key in state)
        return {key: _joined([state[key] for state in states if key in state]) for key in keys}
    if isinstance(first, list):
        return [_joined(column) for column in zip(*states, strict=True)]
    return first
