"""The interface of the synchronization modes: how workers learn from a batch and stay in agreement."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from taugrad.compressors import Totals
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.rounds import PendingRounds

from ..data.batch_plan import Position
from ..data.feeding import Batch
from .ledger import Iteration, Ledger, Links


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
    """This process's workers, and how they synchronize with the others."""

    ranks: Sequence[int]
    """Ranks of the workers that this process runs, ascending."""
    workers: int
    """How many there are everywhere."""
    model: nn.Module
    """What the workers agreed on last."""
    ledger: Ledger
    own_models: bool = False
    """Whether workers train models of their own, which run ahead of `model`; losses are those of these."""

    @abstractmethod
    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        """Every worker here learns from its part of a batch, one a rank of this process.

        Returns the ledger's entry, which the next `flush` completes. Where workers do not wait for one
        another, the next `sync_model` does, and nothing else may make them wait. Raises
        taugrad.compressors.NonFiniteGradient: a gradient holds NaN or Inf and the method refuses that;
        taugrad.compressors.CorruptMessage: a worker received bytes that are no valid message.
        """

    @property
    def totals(self) -> Totals:
        """The ledger of all iterations that are complete; a copy."""
        return Totals(**self.ledger.totals.state_dict())

    def flush(self) -> None:
        """Completes the ledger's entries by what all workers counted; all processes call this together."""
        if self.ledger.begun:
            self.ledger.flush()

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


class InRounds(Synchronization):
    """Workers whose agreement is a pattern's rounds, carried out by a runner.

    Attributes:
        ledger: of this process's workers.
    """

    notes: Sequence[str] = ()
    """What workers note in addition to what all do; see `Ledger`."""

    def __init__(self, averagings: Sequence[Averaging], names: Sequence[str]) -> None:
        """Takes charge; there is one averaging, or one for each part of the model with rounds of its own."""
        self._averaging, self._names = averagings[0], list(names)
        self._runner, self._patterns = self._averaging.runner, self._averaging.patterns
        self.ranks, self.workers = self._runner.ranks, self._runner.workers
        elements = sum(sum(averaging.patterns[0].setting.sizes) for averaging in averagings)
        self.ledger = Ledger(self._runner.gather, len(self.ranks), self.workers, elements, self.notes)

    def links(self) -> Links | None:
        return Links.of(self.ledger.traffic, self.ranks, self._runner.gather)

    def _agree(self, pending: Sequence[PendingRounds]) -> Tensor | None:
        """Ends an exchange; float32 [all elements], or None where the step is left out.

        All workers raise NonFiniteGradient where a worker's is not finite and the method refuses that.
        """
        step, outcome = self.ledger.now.step, self._averaging.run(pending)
        step.exchange_s += outcome.waited_s
        step.blocked_s += outcome.waited_s
        return self._averaging.finish(outcome, step, self.ledger.traffic)

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Worker 0's tensors to all, in place."""
        with self.ledger.waiting():
            self._runner.broadcast(list(tensors))
