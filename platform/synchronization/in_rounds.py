"""What the modes that work in rounds have in common: they run patterns, and keep a ledger."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from time import perf_counter
from typing import Any

from torch import Tensor

from taugrad.compressors import NonFiniteGradient, Totals
from taugrad.compressors.bucket.layout import PartTally
from taugrad.compressors.exchange.patterns import Pattern, Spent
from taugrad.compressors.exchange.resizing import ranks_together, resized, share_of
from taugrad.compressors.exchange.rounds import Participant, Rounds
from taugrad.compressors.exchange.runner import Runner
from taugrad.compressors.exchange.traffic import Links, RefusedUpdate, Traffic

from .base import Synchronization
from .ledger import Ledger

STATE_VERSION = 2
"""Since 2 the workers' states say whose they are."""


class InRounds(Synchronization):
    """Workers whose agreement is a pattern's rounds, carried out by a runner.

    Attributes:
        ledger: of this process's workers.
    """

    notes: Sequence[str] = ()
    """What workers note in addition to what all do; see `Ledger`."""

    def __init__(self, runner: Runner, patterns: Sequence[Pattern], names: Sequence[str]) -> None:
        """Takes charge of one pattern for each of the runner's ranks."""
        self.ranks, self.workers = runner.ranks, runner.workers
        self._runner, self._patterns, self._names = runner, list(patterns), list(names)
        elements = sum(self._patterns[0].setting.sizes)
        self.ledger = Ledger(len(self.ranks), self.workers, elements, self.notes)
        self._synchronizations = 0

    @property
    def totals(self) -> Totals:
        """See `Synchronization.totals`."""
        return Totals(**self.ledger.totals.state_dict())

    def links(self) -> Links | None:
        """See `Synchronization.links`."""
        return self._runner.links(self.ledger.traffic)

    def _participant(self, local: int, tensors: list[Tensor]) -> Participant:
        """One worker's side, as far as its first sending; the tensors are not kept by whoever called."""
        pattern = self._patterns[local]
        before = pattern.spent.compress_s  # beside the backward pass
        started = perf_counter()
        rounds: Rounds = pattern.rounds(tensors, self._synchronizations)
        side = Participant(rounds)
        # Cutting the tensors belongs to it.
        pattern.spent.compress_s = before + perf_counter() - started
        return side

    def _agree(self, participants: Sequence[Participant]) -> Tensor | None:
        """Carries out the rounds; float32 [all elements], or None where the step is left out.

        Raises:
            NonFiniteGradient: on every worker, if a worker's gradient is not finite and the method refuses.
        """
        traffic, agreed = Traffic(self.workers), None
        with self._exchanging():
            try:
                agreed = self._runner.run(participants, traffic)
            except RefusedUpdate as refusal:
                self._leave_out(refusal)
        mean = None if agreed is None else self._patterns[0].assemble(agreed)
        for pattern in self._patterns:
            pattern.commit()
        self._synchronizations += 1
        self._count(traffic, [pattern.spent for pattern in self._patterns])
        for pattern in self._patterns:
            pattern.spent = Spent()
        return mean

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Worker 0's tensors to all, in place."""
        with self._exchanging():
            self._runner.broadcast(list(tensors))

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Adds what the runner waits for the others inside to the ledger."""
        before = self._runner.waited_s
        yield
        waited, step = self._runner.waited_s - before, self.ledger.now.step
        step.exchange_s += waited
        step.blocked_s += waited

    def _leave_out(self, refusal: RefusedUpdate) -> None:
        name = self._names[refusal.ordinal]
        if self._patterns[0].nonfinite == "refuse":
            raise NonFiniteGradient(name, refusal.rank) from None
        for pattern in self._patterns:
            pattern.put_back()
        self.ledger.now.step.skip(name, refusal.rank)

    def _count(self, traffic: Traffic, spent: Sequence[Spent]) -> None:
        step, here = self.ledger.now.step, len(self.ranks)
        self.ledger.traffic.add(traffic)
        step.wire_bytes += traffic.wire_bytes
        step.received_bytes += traffic.received_bytes
        step.messages += traffic.messages
        step.sent += traffic.elements
        step.paper_bits += traffic.paper_bits
        step.compress_s += sum(each.compress_s for each in spent) / here
        step.decompress_s += sum(each.decompress_s for each in spent) / here
        step.layers = _by_parameter(spent[0].tallies)
        step.residual_squares = sum(pattern.residual_squares() for pattern in self._patterns) / here
        step.keeps_residuals = any(pattern.keeps_residuals for pattern in self._patterns)

    def _ledger_state(self) -> dict[str, Any]:
        return {
            "totals": self.totals.state_dict(),
            "synchronizations": self._synchronizations,
        }

    def _load_ledger(self, state: dict[str, Any]) -> None:
        self.ledger.load(state["totals"])
        self._synchronizations = int(state["synchronizations"])

    def _pattern_states(self) -> dict[str, Any]:
        states = zip(self.ranks, self._patterns, strict=True)
        ranks = {str(rank): pattern.state_dict() for rank, pattern in states}
        return {
            "version": STATE_VERSION,
            "workers": self.workers,
            "ranks": ranks,
            "traffic": self.ledger.traffic.state_dict(),
        }

    def _reshard_patterns(self, states: Sequence[Mapping[str, Any]]) -> int:
        """Takes over what `_pattern_states` gave to another number of workers; links are counted anew.

        Returns:
            How many workers those were.

        Raises:
            ValueError: they are not the states of all workers of a run.
        """
        former = ranks_together([state["ranks"] for state in states], [state["workers"] for state in states])
        for local, rank in enumerate(self.ranks):
            pattern = self._patterns[local]
            resized_to = resized(
                former,
                pattern.ranges_of(len(former)),
                pattern.ranges_of(self.workers),
                pattern.setting.names,
                pattern.setting.sizes,
                share_of(len(former), self.workers, pattern.reduction),
            )
            pattern.load_state_dict(resized_to[rank])
        return len(former)

    def _load_patterns(self, states: dict[str, Any]) -> None:
        for rank, pattern in zip(self.ranks, self._patterns, strict=True):
            pattern.load_state_dict(states["ranks"][str(rank)])
        self.ledger.traffic.load_state_dict(states["traffic"])


def require_own(sync: Synchronization, states: Mapping[str, Any], version: int = STATE_VERSION) -> None:
    """Refuses states of an older program or of other workers, with a ValueError."""
    if states.get("version") != version:
        raise ValueError(
            f"version {states.get('version')!r} of workers' states; this program reads {version}"
        )
    theirs, ours = [int(rank) for rank in states["ranks"]], list(sync.ranks)
    if states["workers"] != sync.workers or theirs != ours:
        raise ValueError(
            f"the states of ranks {theirs} of {states['workers']} workers, this process has ranks {ours} "
            f"of {sync.workers}: each worker's residual belongs to its part of the data"
        )


def _by_parameter(tallies: Sequence[PartTally]) -> list[PartTally]:
    """Sums of the tallies of a parameter's pieces."""
    sums = []
    for name, group in groupby(sorted(tallies, key=lambda tally: tally.name), key=lambda tally: tally.name):
        pieces = list(group)
        sent = [piece for piece in pieces if piece.tau is not None]
        weights = sum(piece.elements for piece in sent)
        tau = sum((piece.tau or 0.0) * piece.elements for piece in sent) / weights if weights else None
        sums.append(
            PartTally(
                name,
                sum(piece.elements for piece in pieces),
                sum(piece.sent for piece in pieces),
                sum(piece.residual_squares for piece in pieces),
                tau,
                sum(piece.paper_bits for piece in pieces),
            )
        )
    return sums
