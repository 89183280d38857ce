"""The mode `weights`: workers take local steps between exchanges (Oland-Raj, section 2; DiLoCo)."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from taugrad.compressors import NonFiniteGradient
from taugrad.compressors.exchange.patterns import Pattern
from taugrad.compressors.exchange.resizing import merged, model_of, owed, ranks_together, share_of
from taugrad.compressors.exchange.runner import Runner
from taugrad.compressors.method import Method
from taugrad.compressors.observe import gradient_statistics

from ..data.feeding import Batch
from ..training.generators import Randomness
from ..training.replica import Replica
from .adapting.adapter import adapter_for
from .base import Moment
from .config import WeightsSync
from .in_rounds import InRounds, require_own
from .ledger import Iteration


@dataclass(frozen=True)
class OwnWorkers:
    """The workers of this process, and what they train with."""

    runner: Runner
    patterns: Sequence[Pattern]
    """One for each of them."""
    replicas: Sequence[Replica]
    """Theirs."""
    randomness: Randomness
    method: Method
    """What is compressed with."""
    device: torch.device
    """Where this process trains."""


class LocalTraining(InRounds):
    """A model and an optimizer for each worker here, and the weights that all agreed on last.

    After `every` steps, each worker hands in its weights, or their difference to the agreed weights. All
    workers continue from the mean of the weights, or from the outer optimizer's step along the mean of the
    differences. So replicas are identical after every exchange, and a worker's own weights count as they were
    sent. With `unsent`, a worker adds a part of what it has not sent yet (CSER, arXiv 2007.13221); its
    gradients then reflect its own steps at once, not only when they have been sent. Optimizers keep their
    state.
    """

    own_models = True

    def __init__(self, sync: WeightsSync, own: OwnWorkers) -> None:
        """Takes charge of this process's workers."""
        runner, replicas = own.runner, own.replicas
        super().__init__(runner, own.patterns, replicas[0].names)
        self._sync, self._replicas = sync, list(replicas)
        self._randomness = own.randomness
        self.model = deepcopy(replicas[0].model)
        runner.broadcast([tensor for tensor in self.model.state_dict().values() if tensor.numel()])
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self._agreed = list(reversed(trained))  # in the replicas' order
        outer = sync.outer
        self._outer = torch.optim.SGD(
            self._agreed, lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov
        )
        self._steps = 0
        """Since the last exchange."""
        self._squares = [dict.fromkeys(self._names, 0.0) for _ in replicas]
        """By worker and parameter, the sum of the gradients' mean squares since the last exchange."""
        self.adapter = adapter_for(sync.adapt, own.method, own.device, self._aim_at, sync.every)
        self._go_on_from_agreed()

    def iterate(self, batches: Sequence[Batch], moment: Moment) -> Iteration:
        """See `Synchronization.iterate`. Losses are of each worker's own model."""
        began = perf_counter()
        iteration = self.ledger.begin()
        losses = []
        for local, batch in enumerate(batches):
            # Without examples a worker stays where it is.
            losses.append(batch.weight * self._learn(local, batch, moment) if batch.weight else 0.0)
        self._steps += 1
        every = self._sync.every if self.adapter is None else self.adapter.choice.local_steps
        due = self._steps >= every if every else moment.position.ends_epoch
        if due or moment.last:
            self._exchange()
        if self.adapter is not None:
            seconds = perf_counter() - began
            iteration.metrics = self.adapter.finish_step(iteration.step, seconds, last=moment.last)
        return self.ledger.end(sum(losses) / len(losses))

    def _learn(self, local: int, batch: Batch, moment: Moment) -> float:
        """A worker's step on its part of a batch; the part's mean loss."""
        rank, replica = self.ranks[local], self._replicas[local]
        with self._randomness.of(rank):
            loss = replica.backward(replace(batch, weight=1.0))
        replica.prepare_own()
        if self._sync.exchange == "weights":
            self._note_squares(replica)
        if moment.observe and rank == 0:
            seen = zip(replica.names, replica.parameters, strict=True)
            self.ledger.now.statistics = {
                name: gradient_statistics(each if each.grad is None else each.grad) for name, each in seen
            }
        self._step_alone(replica, rank, moment)
        return loss

    def _aim_at(self, share: float) -> float:
        """Has all that is compressed by a share of elements aim at another; returns what it comes to."""
        compressors = [each for pattern in self._patterns for each in pattern.compressors()]
        aims = [each.feedback.aim_at(share) for each in compressors if each.feedback.method.aim is not None]
        return aims[0]

    def sync_model(self) -> None:
        """See `Synchronization.sync_model`."""
        if self.adapter is not None:
            self.adapter.hear()

    def _step_alone(self, replica: Replica, rank: int, moment: Moment) -> None:
        """One worker's own step; in fp16 it is left out where gradients overflowed."""
        if replica.scale.factor != 1 and not replica.is_finite():
            if not replica.scale.overflowed():
                broken = zip(replica.names, replica.parameters, strict=True)
                name = next(name for name, each in broken if not _finite(each.grad))
                raise NonFiniteGradient(name, rank)
            return
        replica.step(moment.position)

    def _note_squares(self, replica: Replica) -> None:
        """Oland-Raj's section 3.2 decides on weights' bits by the gradients (entropy(form='rms'))."""
        squares = self._squares[self._replicas.index(replica)]
        for name, parameter in zip(replica.names, replica.parameters, strict=True):
            if parameter.grad is not None and parameter.numel():
                squares[name] += float(parameter.grad.double().square().mean())

    def _exchange(self) -> None:
        if self._sync.exchange == "weights":
            for pattern, squares in zip(self._patterns, self._squares, strict=True):
                pattern.rms = {name: math.sqrt(total / self._steps) for name, total in squares.items()}
        participants = [
            self._participant(local, self._handed_in(local)) for local in range(len(self._replicas))
        ]
        mean = self._agree(participants)
        assert mean is not None, "what is not finite is refused in this mode"
        self._apply(mean)
        _copy(list(self.model.buffers()), list(self._replicas[0].model.buffers()))
        self._broadcast(self.model.buffers())
        self._steps = 0
        self._squares = [dict.fromkeys(self._names, 0.0) for _ in self._replicas]
        self._go_on_from_agreed()

    def _apply(self, mean: Tensor) -> None:
        """Takes the workers' mean weights, or the outer optimizer's step along their mean difference."""
        shares = torch.split(mean, [each.numel() for each in self._agreed])
        if self._sync.exchange == "weights":
            _copy(self._agreed, shares)
            return
        for agreed, share in zip(self._agreed, shares, strict=True):
            agreed.grad = share.view_as(agreed).to(agreed.dtype)
        self._outer.step()
        self._outer.zero_grad()

    @torch.no_grad()
    def _handed_in(self, local: int) -> list[Tensor]:
        """A worker's weights, or those it went on from minus its own: a step along it leads to its own."""
        weights = self._replicas[local].weights()
        if self._sync.exchange == "weights":
            return weights
        return [start - own for start, own in zip(self._starts(local), weights, strict=True)]

    @torch.no_grad()
    def _starts(self, local: int) -> list[Tensor]:
        """What a worker went on from after the last exchange, flat [numel]."""
        agreed = [each.detach().reshape(-1) for each in self._agreed]
        part = self._sync.unsent
        if not part:
            return agreed
        # Residuals stay as they are from one exchange to the next, and so this is the same before and after.
        kept = self._patterns[local].unsent()
        return [each - part * own for each, own in zip(agreed, kept, strict=True)]

    def _go_on_from_agreed(self) -> None:
        for local in range(len(self._replicas)):
            self._go_on(local)

    def _go_on(self, local: int) -> None:
        """A worker goes on from what was agreed on."""
        replica = self._replicas[local]
        _copy(replica.parameters, self._starts(local))
        _copy(list(replica.model.buffers()), list(self.model.buffers()))

    def shared_state(self) -> dict[str, Any]:
        """See `Synchronization.shared_state`."""
        return {
            "model": self.model.state_dict(),
            "outer": self._outer.state_dict(),
            "ledger": self._ledger_state(),
            "steps": self._steps,
            **({} if self.adapter is None else {"adapter": self.adapter.shared_state()}),
        }

    def own_state(self) -> dict[str, Any]:
        """See `Synchronization.own_state`."""
        replicas = {
            str(rank): {
                "model": replica.model.state_dict(),
                "replica": replica.state_dict(),
                "squares": squares,
            }
            for rank, replica, squares in zip(self.ranks, self._replicas, self._squares, strict=True)
        }
        measured = {} if self.adapter is None else {"measured": self.adapter.own_state()}
        return {"replicas": replicas, "patterns": self._pattern_states(), **measured}

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        self.model.load_state_dict(shared["model"])
        self._outer.load_state_dict(shared["outer"])
        self._load_ledger(shared["ledger"])
        self._steps = int(shared["steps"])

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`.

        How far workers have moved since the last exchange still has to be sent, like a residual, and is
        merged in the same way, into the weights of the workers that take it over. Optimizers of workers that
        leave are dropped; a worker that joins starts with a copy of another one's.
        """
        self._load_agreed(shared)
        patterns = [each["patterns"] for each in workers]
        counts = [each["workers"] for each in patterns]
        former = ranks_together([each["replicas"] for each in workers], counts)
        kept = ranks_together([each["ranks"] for each in patterns], counts)
        moved = [self._moved(*each, len(former)) for each in zip(former, kept, strict=True)]
        self._reshard_patterns(patterns)
        share = share_of(len(former), self.workers, self._patterns[0].reduction)
        moves = merged(moved, self.workers, share)
        self._squares = []
        for local, (rank, replica) in enumerate(zip(self.ranks, self._replicas, strict=True)):
            model = former[model_of(rank, len(former))]
            replica.model.load_state_dict(model["model"])
            replica.load_state_dict(model["replica"])
            self._squares.append(dict(model["squares"]))
            starts = zip(self._names, self._starts(local), strict=True)
            weights = [start - moves[rank][name] if name in moves[rank] else start for name, start in starts]
            _copy(replica.parameters, weights)

    def _moved(self, worker: Mapping[str, Any], kept: Mapping[str, Any], former: int) -> dict[str, Tensor]:
        """How far a former worker has moved since the last exchange, by parameter, flat [numel].

        Args:
            worker: what it has saved of its model.
            kept: what its pattern has.
            former: of how many it was one.
        """
        setting = self._patterns[0].setting
        unsent = owed(kept, self._patterns[0].ranges_of(former), setting.names, setting.sizes)
        moved = {}
        for name, agreed in zip(self._names, self._agreed, strict=True):
            start = agreed.detach().reshape(-1)
            if self._sync.unsent and name in unsent:
                start = start - self._sync.unsent * unsent[name].to(start.device)
            moved[name] = (start - worker["model"][name].reshape(-1).to(start.device)).cpu()
        return moved

    def load(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """See `Synchronization.load`."""
        require_own(self, own["patterns"])
        self._load_agreed(shared)
        for rank, replica in zip(self.ranks, self._replicas, strict=True):
            replica.model.load_state_dict(own["replicas"][str(rank)]["model"])
            replica.load_state_dict(own["replicas"][str(rank)]["replica"])
        self._squares = [dict(own["replicas"][str(rank)]["squares"]) for rank in self.ranks]
        self._load_patterns(own["patterns"])
        if self.adapter is not None:
            self.adapter.load(shared["adapter"], own["measured"])


def _finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(torch.isfinite(gradient).all())


@torch.no_grad()
def _copy(to: Sequence[Tensor | nn.Parameter], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(to, values, strict=True):
        tensor.copy_(value.view_as(tensor))
