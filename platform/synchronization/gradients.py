"""Gradients exchanged in rounds after the backward pass: simulated workers, own clipping, and hybrid."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.patterns.base import Pattern
from taugrad.compressors.exchange.rounds import PendingRounds
from taugrad.compressors.exchange.runner import Runner
from taugrad.compressors.exchange.tensors import copy_into

from ..data.feeding import Batch
from ..replica.generators import Randomness
from ..replica.replica import Replica
from .ledger import Iteration
from .synchronization import InRounds, StepContext


class GradientsInRounds(InRounds):
    """One model for all workers here: replicas are identical, only gradients and residuals differ."""

    def __init__(
        self,
        runner: Runner,
        patterns: Sequence[Pattern],
        replica: Replica,
        randomness: Randomness,
        *,
        refuses: bool = True,
        can_skip: bool = True,
        model: nn.Module | None = None,
        others: Sequence[str] = (),
    ) -> None:
        """Takes charge, with a pattern for each of the runner's ranks.

        `refuses`: whether a gradient that is not finite ends the run, unless fp16 made it so; `can_skip`:
        whether `nonfinite: skip` is accepted. `model` is the whole, where the replica has a part of it;
        `others` names its other parameters.
        """
        self._refuses = refuses
        names = [*replica.names, *others]
        nonfinite = partial(NonFiniteGradient, can_skip=can_skip)
        super().__init__([Averaging(runner, patterns, names, nonfinite=nonfinite)], names)
        self._replica, self._randomness = replica, randomness
        self.model = replica.model if model is None else model
        self._runner.broadcast([*self.model.parameters(), *self.model.buffers()])

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        iteration = self.ledger.begin()
        losses, pending = [], []
        self._broadcast(self.model.buffers())
        before = [buffer.clone() for buffer in self.model.buffers()]
        after: list[Tensor] = []
        for local, (rank, batch) in enumerate(zip(self.ranks, batches, strict=True)):
            copy_into(list(self.model.buffers()), before)
            with self._randomness.of(rank):
                losses.append(self._replica.backward(batch))
            after = after or [buffer.clone() for buffer in self.model.buffers()]
            pending.append(self._begin_exchange(local, rank, context))
        copy_into(list(self.model.buffers()), after)  # worker 0's, as DDP has it
        mean = self._agree(pending)
        if mean is not None:
            self._replica.put_gradients(self._patterns[0].by_parameter(mean))
            self._replica.step(context.position)
        elif not self._replica.scale.overflowed() and self._refuses:
            raise NonFiniteGradient(*self.ledger.now.step.nonfinite[0])
        iteration.loss = sum(losses) / len(losses)
        return iteration

    def _begin_exchange(self, local: int, rank: int, context: StepContext) -> PendingRounds:
        self._replica.prepare_own()
        return self._averaging.begin(local, self._taken_gradients(rank, context))

    def _taken_gradients(self, rank: int, context: StepContext) -> list[Tensor]:
        """The replica's, as one worker's; worker 0's are observed."""
        if context.observe and rank == 0:
            self.ledger.now.statistics = self._replica.statistics()
        return self._replica.take_gradients()

    def sync_model(self) -> None:
        """See `Synchronization.sync_model`. Buffers become worker 0's before the next pass only."""
        self._runner.broadcast(list(self.model.buffers()))

    def shared_state(self) -> dict[str, Any]:
        ledger = {"totals": self.totals.state_dict(), "synchronizations": self._averaging.done}
        return {"model": self.model.state_dict(), "replica": self._replica.state_dict(), "ledger": ledger}

    def worker_state(self) -> dict[str, Any]:
        return {"patterns": {**self._averaging.worker_state(), "traffic": self.ledger.traffic.state_dict()}}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        self._averaging.load_worker_state(local_state["patterns"])
        self.ledger.traffic.load_state_dict(local_state["patterns"]["traffic"])
        self._load_agreed(shared)

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        self._averaging.reshard([worker["patterns"] for worker in workers])
        self._load_agreed(shared)

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        self.model.load_state_dict(shared["model"])
        self._replica.load_state_dict(shared["replica"])
        self.ledger.load(shared["ledger"]["totals"])
        self._averaging.done = int(shared["ledger"]["synchronizations"])
