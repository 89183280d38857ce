"""One mean after the other, of what all workers hand in: patterns' rounds, run and counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter
from typing import Any

from torch import Tensor

from ..bucket.layout import PartTally
from ..bucket.ledger import Step
from ..errors import NonFiniteGradient
from .patterns.base import Pattern, Spent
from .resizing import ranks_together
from .rounds import Participant, Runner
from .traffic import RefusedUpdate, Traffic

STATE_VERSION = 3
"""Since 2 the workers' states say whose they are; since 3 where the pieces begin that they keep."""


@dataclass(frozen=True)
class Outcome:
    """What rounds came to."""

    mean: Tensor | RefusedUpdate
    """Or the sum: float32 [all elements], the same on every worker."""
    traffic: Traffic
    waited_s: float
    """While messages were under way."""


class Averaging:
    """This process's workers among those that agree on a mean: a pattern each, and what runs their rounds."""

    def __init__(self, runner: Runner, patterns: Sequence[Pattern], names: Sequence[str]) -> None:
        """Takes charge of a pattern for each of the runner's ranks; errors name tensors by these names."""
        self.runner, self.patterns, self._names = runner, list(patterns), list(names)
        self.done = 0
        """Means so far."""

    def participant(self, local: int, tensors: list[Tensor]) -> Participant:
        """One worker's side, as far as its first sending; the tensors are not kept by whoever called."""
        pattern = self.patterns[local]
        before = pattern.spent.compress_s  # beside the backward pass
        started = perf_counter()
        side = Participant(pattern.rounds(tensors, self.done))
        # Cutting the tensors belongs to it.
        pattern.spent.compress_s = before + perf_counter() - started
        return side

    def run(self, participants: Sequence[Participant]) -> Outcome:
        """Runs the rounds of all workers here, in whatever thread; raises PeerLost and CorruptMessage."""
        traffic, before = Traffic(self.runner.workers), self.runner.waited_s
        try:
            agreed = self.runner.run(participants, traffic)
        except RefusedUpdate as refusal:
            return Outcome(refusal, traffic, self.runner.waited_s - before)
        return Outcome(self.patterns[0].assemble(agreed), traffic, self.runner.waited_s - before)

    def finish(self, outcome: Outcome, step: Step, traffic: Traffic) -> Tensor | None:
        """Counts what was sent, and tells the patterns that it has arrived.

        Returns:
            The mean (or sum), float32 [all elements], the same on every worker; None where all leave it out.

        Raises:
            NonFiniteGradient: on every worker, if a worker's part is not finite and the method refuses.
        """
        mean = outcome.mean
        if isinstance(mean, RefusedUpdate):
            name = self._names[mean.ordinal]
            if self.patterns[0].nonfinite == "refuse":
                raise NonFiniteGradient(name, mean.rank) from None
            for pattern in self.patterns:
                pattern.put_back()
            step.skip(name, mean.rank)
        self.done += 1
        traffic.add(outcome.traffic)
        step.add(outcome.traffic.sums)
        step.layers += _by_parameter(self.patterns[0].spent.tallies)
        here = len(self.patterns)
        step.compress_s += sum(each.spent.compress_s for each in self.patterns) / here
        step.decompress_s += sum(each.spent.decompress_s for each in self.patterns) / here
        step.residual_squares += sum(each.residual_squares() for each in self.patterns) / here
        for pattern in self.patterns:
            step.keeps_residuals |= pattern.keeps_residuals
            pattern.commit()
            pattern.spent = Spent()
        return None if isinstance(mean, RefusedUpdate) else mean

    # States.

    def own_state(self) -> dict[str, Any]:
        """What this process's workers have not sent, by rank; plain numbers and tensors."""
        states = zip(self.runner.ranks, self.patterns, strict=True)
        return {
            "version": STATE_VERSION,
            "workers": self.runner.workers,
            "ranks": {str(rank): pattern.state_dict() for rank, pattern in states},
        }

    def load(self, own: Mapping[str, Any]) -> None:
        """Takes over what `own_state` gave to the same workers; raises ValueError where it does not fit."""
        require_own(own, self.runner.ranks, self.runner.workers, STATE_VERSION)
        for rank, pattern in zip(self.runner.ranks, self.patterns, strict=True):
            pattern.load_state_dict(own["ranks"][str(rank)])

    def reshard(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what `own_state` gave to all processes of another number of workers.

        Raises ValueError where they are not the states of all workers of a run.
        """
        former = ranks_together([state["ranks"] for state in states], [state["workers"] for state in states])
        for pattern in self.patterns:
            pattern.take_over(former)


def require_own(states: Mapping[str, Any], ranks: Sequence[int], workers: int, version: int) -> None:
    """Refuses states of an older program or of other workers, with a ValueError."""
    if states.get("version") != version:
        raise ValueError(
            f"version {states.get('version')!r} of workers' states; this program reads {version}"
        )
    theirs, ours = [int(rank) for rank in states["ranks"]], list(ranks)
    if states["workers"] != workers or theirs != ours:
        raise ValueError(
            f"the states of ranks {theirs} of {states['workers']} workers, this process has ranks {ours} "
            f"of {workers}: each worker's residual belongs to its part of the data"
        )


def _by_parameter(tallies: Sequence[PartTally]) -> list[PartTally]:
    """Sums of the tallies of a parameter's pieces."""
    sums = []
    for name, group in groupby(sorted(tallies, key=lambda tally: tally.name), key=lambda tally: tally.name):
        whole, taus, weights = PartTally(name, 0, 0, 0.0), 0.0, 0
        for piece in group:
            whole.elements += piece.elements
            whole.sent += piece.sent
            whole.residual_squares += piece.residual_squares
            whole.paper_bits += piece.paper_bits
            if piece.tau is not None:
                taus, weights = taus + piece.tau * piece.elements, weights + piece.elements
        whole.tau = taus / weights if weights else None
        sums.append(whole)
    return sums
