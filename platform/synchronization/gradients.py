"""Gradients exchanged in rounds after the backward pass: simulated workers, own clipping, and hybrid."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.exchange import Exchange
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.patterns.base import Pattern
from taugrad.compressors.exchange.worker_group import WorkerGroup

from ..data.feeding import Batch
from ..replica.generators import Randomness
from ..replica.replica import Replica
from .ledger import Iteration
from .synchronization import StepContext, WorkerInLockstep


class GradientsInRounds(WorkerInLockstep):
    """A worker whose replica is that of all workers after each step; only gradients and residuals differ."""

    def __init__(
        self,
        group: WorkerGroup,
        pattern: Pattern,
        replica: Replica,
        randomness: Randomness,
        *,
        refuses: bool = True,
        can_skip: bool = True,
        model: nn.Module | None = None,
        others: Sequence[str] = (),
    ) -> None:
        """Takes charge of a worker; simulated ones share parameters and optimizer.

        `refuses`: whether a gradient that is not finite ends the run, unless fp16 made it so; `can_skip`:
        whether `nonfinite: skip` is accepted. `model` is the whole, where the replica has a part of it;
        `others` names its other parameters.
        """
        super().__init__(group, sum(pattern.sizes.values()))
        nonfinite = partial(NonFiniteGradient, can_skip=can_skip)
        self._averaging = Averaging(group.carrier, pattern, [*replica.names, *others], nonfinite=nonfinite)
        self._pattern, self._replica, self._randomness, self._refuses = pattern, replica, randomness, refuses
        self.model = replica.model if model is None else model
        self._used: NDArray[np.bool_] | None = None
        """Which parameters some worker has a gradient of; None: all."""

    def iteration(self, batch: Batch, context: StepContext) -> Coroutine[Iteration]:
        iteration = self.ledger.begin()
        self._share_buffers(self.model)
        with self._randomness.of(self.rank):
            iteration.loss = self._replica.backward(batch)
        self._replica.prepare_own()
        used = self._replica.used()
        exchange = self._averaging.begin(self._taken_gradients(context))
        mean = yield from self._mean(exchange)
        if self._replica.finds_unused:
            self._used = (yield from self._group.gather(used)).sum(axis=0) > 0
        yield partial(self._step, mean, context)
        return iteration

    def _share_buffers(self, model: nn.Module) -> None:
        """Copies worker 0's to all workers."""
        with self.ledger.waiting():
            self._group.broadcast(list(model.buffers()))

    def _mean(self, exchange: Exchange) -> Coroutine[Tensor | None]:
        """Ends an exchange; float32 [all elements], or None where the step is left out.

        All workers raise NonFiniteGradient where a worker's is not finite and the method refuses that.
        """
        mean, step = (yield from self._averaging.complete(exchange)), self.ledger.now.step
        step.blocked_s += exchange.record.waited_s
        return self._averaging.finish(mean, exchange.record, step, self.ledger.traffic)

    def _step(self, mean: Tensor | None, context: StepContext) -> None:
        """The step of all workers along their mean gradient."""
        if mean is not None:
            self._replica.put_gradients(self._pattern.by_parameter(mean), self._used)
            self._replica.step(context.position)
        elif not self._replica.scale.overflowed() and self._refuses:
            raise NonFiniteGradient(*self.ledger.now.step.nonfinite[0])

    def _taken_gradients(self, context: StepContext) -> list[Tensor]:
        """The worker's; worker 0's are observed."""
        if context.observe and self.rank == 0:
            self.ledger.now.statistics = self._replica.statistics()
        return self._replica.take_gradients()

    def agree(self) -> Coroutine[None]:
        """See `Synchronization.sync_model`. Buffers become worker 0's before the next pass only."""
        self._group.broadcast(list(self.model.buffers()))
        yield None

    def shared_state(self) -> dict[str, Any]:
        ledger = {"totals": self.totals.state_dict(), "synchronizations": self._averaging.done}
        return {"model": self.model.state_dict(), "replica": self._replica.state_dict(), "ledger": ledger}

    def worker_state(self) -> dict[str, Any]:
        traffic = {str(self.rank): self.ledger.traffic.state_dict()}
        return {"patterns": {**self._averaging.worker_state(), "traffic": traffic}}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        self._averaging.load_worker_state(local_state["patterns"])
        self.ledger.traffic.load_state_dict(local_state["patterns"]["traffic"][str(self.rank)])
        self._load_agreed(shared)

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        self._averaging.reshard([worker["patterns"] for worker in workers])
        self._load_agreed(shared)

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        self.model.load_state_dict(shared["model"])
        self._replica.load_state_dict(shared["replica"])
        self.ledger.load(shared["ledger"]["totals"])
        self._averaging.done = int(shared["ledger"]["synchronizations"])
