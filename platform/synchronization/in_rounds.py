"""What the modes that work in rounds have in common: they agree on means, and keep a ledger."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from taugrad.compressors.bucket.ledger import Links
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.rounds import PendingRounds

from .base import Synchronization
from .ledger import Ledger


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
