"""Runs a pattern's rounds to completion and records the traffic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from torch import Tensor

from ..bucket.ledger import Step, Traffic
from ..errors import NonFiniteGradient
from ..ops.parts import by_parameter
from ..spans import RECORDER, duration
from .patterns.base import Pattern, RefusedUpdate
from .resizing import ranks_together
from .rounds import ExchangeRecord, PendingRounds
from .runner import Runner

STATE_VERSION = 4
"""Since 2 the workers' states say whose they are; since 4 they have residuals of whole parameters."""


@dataclass(frozen=True)
class Outcome:
    """The result of an exchange."""

    mean: Tensor | RefusedUpdate
    """Or the sum: float32 [all elements], the same on every worker."""
    records: Sequence[ExchangeRecord]
    """One per worker here; they share their traffic."""
    waited_s: float
    """While messages were under way."""

    @property
    def traffic(self) -> Traffic:
        """What the workers here sent and received."""
        return self.records[0].traffic


class Averaging:
    """This process's workers among those that agree on a mean: a pattern each, and what runs their rounds."""

    def __init__(
        self,
        runner: Runner,
        patterns: Sequence[Pattern],
        names: Sequence[str],
        tag: str = "round",
        nonfinite: Callable[[str, int], Exception] = NonFiniteGradient,
    ) -> None:
        """Takes charge of a pattern for each of the runner's ranks; no other exchange under way has the tag.

        Errors have the tensors' names: `nonfinite` makes that of one which is not finite, on a rank.
        """
        self.runner, self.patterns, self._names, self._tag = runner, list(patterns), list(names), tag
        self._nonfinite = nonfinite
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._traffic = Traffic(runner.workers)
        self.done = 0
        """Means so far."""

    def begin(self, local: int, tensors: list[Tensor], refused: int | None = None) -> PendingRounds:
        """Compresses one worker's tensors, and sends the first messages; the caller drops its references.

        For `refused` see `Pattern.rounds`.
        """
        record, carrier = ExchangeRecord(self._traffic), self.runner.carriers[local]
        rounds = self.patterns[local].rounds(tensors, self.done, record, refused)
        pending = PendingRounds(rounds, record, carrier, self._tag, self._calls.put)
        pending.begin()
        return pending

    def run(self, pending: Sequence[PendingRounds]) -> Outcome:
        """Runs the exchange of all workers here to its end, in any thread.

        Raises PeerLost and CorruptMessage.
        """
        self._traffic, records = Traffic(self.runner.workers), [exchange.record for exchange in pending]
        payloads, waited_s = self.runner.finish(pending, self._calls)
        if refusals := self.patterns[0].refusals(payloads):
            return Outcome(refusals[0], records, waited_s)
        began = perf_counter()
        mean = self.patterns[0].assemble(payloads)
        records[0].decoding.append((began, perf_counter()))
        return Outcome(mean, records, waited_s)

    def refusal(self, refused: RefusedUpdate) -> Exception:
        """The error for a tensor that is not finite."""
        return self._nonfinite(self._names[refused.ordinal], refused.rank)

    def finish(self, outcome: Outcome, step: Step, traffic: Traffic) -> Tensor | None:
        """Counts what was sent, and tells the patterns that it has arrived.

        Returns:
            The mean (or sum), float32 [all elements], the same on every worker; None where all leave it out.

        Raises:
            Exception: `nonfinite`, on every worker, if a worker's part is not finite and the method refuses.
        """
        mean = outcome.mean
        if isinstance(mean, RefusedUpdate):
            name = self._names[mean.ordinal]
            if self.patterns[0].nonfinite == "refuse":
                raise self.refusal(mean) from None
            for pattern in self.patterns:
                pattern.put_back()
            step.skip(name, mean.rank)
        self.done += 1
        traffic.add(outcome.traffic)
        step.add(outcome.traffic.sums)
        here = len(self.patterns)
        step.layers += by_parameter(outcome.records[0].tallies)
        for record in outcome.records:
            step.compress_s += duration(record.compressing) / here
            step.decompress_s += duration(record.decoding) / here
            for name, intervals in (("compress", record.compressing), ("decode", record.decoding)):
                for interval in intervals:
                    RECORDER.add(name, "compute", *interval)
        step.residual_squares += sum(pattern.residual_squares() for pattern in self.patterns) / here
        for pattern in self.patterns:
            step.keeps_residuals |= pattern.keeps_residuals
            pattern.commit()
        return None if isinstance(mean, RefusedUpdate) else mean

    # States.

    def worker_state(self) -> dict[str, Any]:
        """What this process's workers have not sent, by rank; plain numbers and tensors."""
        states = zip(self.runner.ranks, self.patterns, strict=True)
        return {
            "version": STATE_VERSION,
            "workers": self.runner.workers,
            "ranks": {str(rank): pattern.state_dict() for rank, pattern in states},
        }

    def load_worker_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `worker_state` gave to the same workers; raises ValueError if it does not fit."""
        require_same_ranks(state, self.runner.ranks, self.runner.workers, STATE_VERSION)
        for rank, pattern in zip(self.runner.ranks, self.patterns, strict=True):
            pattern.load_state_dict(state["ranks"][str(rank)])

    def reshard(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what `worker_state` gave to all processes of another number of workers.

        Raises ValueError where they are not the states of all workers of a run.
        """
        former = ranks_together([state["ranks"] for state in states], [state["workers"] for state in states])
        for pattern in self.patterns:
            pattern.take_over(former)


def require_same_ranks(states: Mapping[str, Any], ranks: Sequence[int], workers: int, version: int) -> None:
    """Refuses states of an older program or of other workers, with a ValueError."""
    if states.get("version") != version:
        raise ValueError(
            f"version {states.get('version')!r} of workers' states; this program reads {version}"
        )
    saved, here = [int(rank) for rank in states["ranks"]], list(ranks)
    if states["workers"] != workers or saved != here:
        raise ValueError(
            f"the states of ranks {saved} of {states['workers']} workers, this process has ranks {here} "
            f"of {workers}: each worker's residual belongs to its part of the data"
        )
