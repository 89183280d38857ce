"""A fragment of a member's model, and what the member has not sent of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...bucket.compressor import Worker
from ...local_fields import LocalFields
from ...methods import CompressedMethod, Method
from ...ops.array import host
from ..carrier import Payload, in_memory
from ..local_rounds import Agreed, Fragment
from ..patterns.allgather import AllGather
from ..patterns.base import ExchangeRecord
from ..tensors import copy_into, local_tensor
from ..worker_group import WorkerGroup


class MemberFragment(Fragment):
    """A part of the model that is offered by itself.

    Attributes:
        trains: whether the model has the weights that the member continued from, and steps that are not sent.
        pending: what is added to the next offer, float32 [all elements].
        pending_examples: from which that was learned.
        least_examples: as which an offer counts at least, so that where they are few, as in a last round,
            moves weigh more, not the residuals; 0 without residuals.
    """

    def __init__(
        self,
        method: Method,
        worker: Worker,
        names: Sequence[str],
        ordinals: Sequence[int],
        agreed: Agreed,
        parameters: Sequence[Tensor],
        fields: LocalFields,
        unit: float | None,
    ) -> None:
        """Takes charge of some parameters; with `unit`, so many examples weigh 1. See `LocalRounds`."""
        sizes = {names[ordinal]: agreed.weights[ordinal].numel() for ordinal in ordinals}
        group, pattern = WorkerGroup(in_memory(1)[0]), AllGather(method, worker, sizes)
        super().__init__(group, pattern, "", ordinals, agreed, parameters, fields)
        self._allgather, self._unit = pattern, unit
        keeps_residuals = isinstance(method, CompressedMethod) and method.keeps_residuals
        self.least_examples = unit if unit and keeps_residuals else 0.0
        self.trains, self.pending, self.pending_examples = False, self.zeros(), 0.0

    def zeros(self) -> Tensor:
        """Nothing, float32 [all elements]."""
        elements = sum(self._allgather.sizes.values())
        return torch.zeros(elements, dtype=torch.float32, device=self._allgather.worker.ops.device)

    def moves(self) -> Tensor:
        """Its steps since it continued from the agreed weights, float32 [all elements]."""
        return torch.cat([tensor.float() for tensor in self.pseudo_gradient()])

    def unsent(self) -> Tensor:
        """These, and what is kept for the next offer."""
        if not self.trains:
            return self.pending
        return self.pending + (
            self.moves() * (self.part.examples / self._unit) if self._unit else self.moves()
        )

    @property
    def unsent_examples(self) -> float:
        """From how many that was learned."""
        return self.pending_examples + (self.part.examples if self.trains else 0.0)

    def keep(self, update: Tensor, examples: float) -> None:
        """Adds to the next offer."""
        self.pending, self.pending_examples = self.pending + update, self.pending_examples + examples

    def set_aside(self) -> None:
        """Keeps for the next offer what is not sent; the model will continue from the agreed weights."""
        self.pending, self.pending_examples = self.unsent(), self.unsent_examples
        self._stop()

    def forget(self) -> float:
        """Forgets all that is not sent; returns its sum of squares."""
        squares = self.pattern.residual_squares() + float(self.unsent().square().sum())
        for kept in (self._allgather.feedback.residuals, self._allgather.feedback.velocities):
            for tensor in kept.values():
                tensor.zero_()
        self.pending, self.pending_examples = self.zeros(), 0.0
        self._stop()
        return squares

    def _stop(self) -> None:
        """Ends its steps. Those since an offer that is on its way stay in the model; so do their examples."""
        if self.trains:
            self.trains, self.part.examples = False, 0.0

    def offer(self, slot: int, record: ExchangeRecord) -> tuple[Payload, float]:
        """Compresses what is not sent; returns the message, and from how many examples it was learned.

        Raises NonFiniteWeight.
        """
        self.part.examples += max(0.0, self.least_examples - self.unsent_examples)
        parts = list(torch.split(self.unsent(), list(self._allgather.sizes.values())))
        record = replace(record, iteration=self.averaging.done, weights=self.agreed_by_name)
        message = host(self._allgather.offer(parts, record, slot).payload)
        self._require_finite({slot: message})
        examples = self.unsent_examples
        if self._unit:
            self.part.weight = examples / self._unit
        self.trains, self.pending, self.pending_examples = False, self.zeros(), 0.0
        self.note_sending()
        return message, examples

    def merge(self, messages: dict[int, Payload], factor: float) -> None:
        """Applies a factor times the mean of some members' messages; the member's own steps stay."""
        self._require_finite(messages)
        moves, mean = self.pseudo_gradient() if self.trains else None, self.pattern.assemble(messages)
        self.apply(mean if factor == 1 else factor * mean)
        self.move_again(moves)

    @torch.no_grad()
    def move_again(self, moves: Sequence[Tensor] | None) -> None:
        """Lets the model continue from the agreed weights, with the steps that it took before, if any."""
        if moves is not None:
            bases = self.base_weights()
            weights = [base - move for base, move in zip(bases, moves, strict=True)]
            copy_into(map(local_tensor, self.parameters), weights)

    def _require_finite(self, messages: dict[int, Payload]) -> None:
        if refusals := self.pattern.refusals(messages):
            raise self.averaging.refusal(refusals[0])

    def worker_state(self) -> dict[str, Any]:
        """What only this member has."""
        return {
            "unsent": self.averaging.worker_state(),
            "pending": self.unsent(),
            "trains": False,
            "examples": self.unsent_examples,
            "weight": self.part.weight,
            "workers": self.workers,
        }

    def load_worker_state(self, saved: Mapping[str, Any]) -> None:
        """Restores what `worker_state` returned; raises ValueError where it is of another fragment."""
        self.averaging.load_worker_state(saved["unsent"])
        pending = self.zeros() if saved["pending"] is None else saved["pending"]
        if pending.shape != self.pending.shape:
            raise ValueError("the state is of other fragments")
        self.pending = pending.to(self.pending.device, copy=True)
        self.trains, self.workers = bool(saved["trains"]), int(saved["workers"])
        self.pending_examples, self.part.weight = float(saved["examples"]), float(saved["weight"])
