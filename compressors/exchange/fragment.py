"""A fragment of a model in local steps: what workers send of it, and how they go on from what all agreed on.

A worker sends its weights, or its pseudo-gradient: the base weights, from which its steps began, minus its
weights. All continue from the mean of the weights, or from the outer optimizer's step along the mean
pseudo-gradient (DiLoCo, arXiv 2311.08105). While a fragment is on its way, workers may train on (Streaming
DiLoCo, arXiv 2501.18512).

Agreed weights, residuals and outer momentum lie on the model's device; or, with `offload`, in the host's
memory. Updates are compressed where the residuals lie. The outer optimizer steps where the model lies, in
pieces, so that its arithmetic is the same, and a GPU needs memory for one piece.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ..bucket.layout import PartTally
from ..bucket.ledger import Traffic
from ..errors import NonFiniteWeight
from ..method.local import LocalFields
from .averaging import Averaging, Outcome
from .patterns.base import Pattern, RefusedUpdate
from .resizing import merged, model_of, ranks_together, share_of
from .rounds import ExchangeRecord, PendingRounds
from .runner import Runner
from .side_channel import SideData
from .tensors import copy_into, local_tensor

_PIECE = 1 << 20
"""Elements of which the outer optimizer steps at a time."""


@dataclass(frozen=True)
class LocalWorker:
    """One worker's model."""

    parameters: Sequence[Tensor]
    """Those that are trained, of any shape and float type; of a sharded one, this process's shard."""
    model: nn.Module | None = None
    """Whose buffers are exchanged."""


class InFlight(NamedTuple):
    """A fragment that was sent, and has not been merged."""

    merge_at: int
    """Step after which it is."""
    result: Callable[[], tuple[Outcome, SideData]]
    """Waits for its rounds, and their side channel."""


class FormerModel(NamedTuple):
    """A worker's model, as another number of workers saved it."""

    weights: Sequence[Tensor]
    """By parameter."""
    pending: Sequence[Tensor] | None = None
    """By parameter, flat [numel], what the worker had not sent before."""


@dataclass
class WorkerPart:
    """What a worker here keeps of a fragment, beside its residual."""

    squares: list[float]
    """By parameter, the sum of its gradients' mean squares since the last sending."""
    examples: float = 0.0
    """From which it learned since then."""
    weight: float = 1.0
    """What its part was multiplied by at the last sending."""
    at_sending: list[Tensor] = field(default_factory=list)
    """By parameter, flat [numel]: its weights at the last sending, while the fragment is on its way and the
    worker is to keep the steps that it takes meanwhile."""


class Fragment(Averaging):
    """A part of the model that is exchanged in rounds of its own; for attributes see also `Averaging`.

    Attributes:
        ordinals: of its parameters.
        agreed: their agreed weights, flat [numel]; the same bits on all workers.
        momentum: of the outer optimizer, flat [numel] by parameter; empty without.
        parts: by worker here.
        sent_at: the progress at its last sending, or at what counts as one at first.
        sent_step: the step of it.
        in_flight: what was sent and is not merged.
    """

    def __init__(
        self,
        runner: Runner,
        patterns: Sequence[Pattern],
        tag: str,
        ordinals: Sequence[int],
        agreed: Sequence[Tensor],
        workers: Sequence[LocalWorker],
        fields: LocalFields,
    ) -> None:
        """Takes charge of some of the parameters; `agreed` has those of all, and is updated in place."""
        super().__init__(runner, patterns, patterns[0].setting.names, tag, NonFiniteWeight)
        self.ordinals, self._workers, self._fields = ordinals, workers, fields
        self.agreed = [agreed[ordinal] for ordinal in ordinals]
        # Of what adding changes nothing: the first momentum is the first mean, signs of zeros included.
        self.momentum = [empty_like(weights).fill_(-0.0) for weights in self.agreed if fields.outer.momentum]
        self.parts = [WorkerPart([]) for _ in workers]
        self.sent_at = 0.0
        self.in_flight: InFlight | None = None
        self.begin_anew(0)

    def begin_anew(self, step: int) -> None:
        """Notes that it was sent after a step."""
        self.sent_step = step
        for part in self.parts:
            part.examples, part.squares = 0.0, [0.0 for _ in self.ordinals]

    @property
    def sendings(self) -> int:
        """How often it was sent."""
        return self.done + (self.in_flight is not None)

    def send(self, steps: int) -> list[PendingRounds]:
        """Compresses what the workers here send after so many steps, and sends the first messages."""
        pending = []
        for local, (pattern, part) in enumerate(zip(self.patterns, self.parts, strict=True)):
            if self._fields.exchange == "weights":
                means = (math.sqrt(square / steps) if steps else 0.0 for square in part.squares)
                pattern.rms = dict(zip(pattern.setting.names, means, strict=True))
            update = self.pseudo_gradient(local)
            weighed = update if part.weight == 1 else [part.weight * tensor for tensor in update]
            pending.append(self.begin(local, weighed))
            if self._fields.delay_steps and self._fields.blend is None:
                part.at_sending = [weights.clone() for weights in self._weights(local)]
        return pending

    @torch.no_grad()
    def pseudo_gradient(self, local: int) -> list[Tensor]:
        """A worker's weights; or the base weights minus these, so that a step along it leads to them."""
        weights = self._weights(local)
        if self._fields.exchange == "weights":
            return weights
        bases = self.base_weights(local)
        return [base - weight.to(base.dtype) for base, weight in zip(bases, weights, strict=True)]

    @torch.no_grad()
    def base_weights(self, local: int) -> list[Tensor]:
        """The weights that local steps start from: agreed ones, less a part of the residual; flat [numel]."""
        if not self._fields.unsent:
            return self.agreed
        # Residuals stay as they are from one exchange to the next, and so this is the same before and after.
        share = self._fields.unsent_share(self.runner.workers) / (self.parts[local].weight or 1.0)
        residuals = self.patterns[local].unsent()
        return [agreed - share * residual for agreed, residual in zip(self.agreed, residuals, strict=True)]

    @torch.no_grad()
    def apply(self, mean: Tensor) -> None:
        """Takes the workers' mean weights, or the outer optimizer's step along their mean pseudo-gradient."""
        means = torch.split(mean, [weights.numel() for weights in self.agreed])
        if self._fields.exchange == "weights":
            copy_into(self.agreed, means)
            return
        outer, offloads = self._fields.outer, self._fields.offload
        for place, agreed in enumerate(self.agreed):
            device = self._parameter(0, place).device
            tensors = (means[place], agreed, *self.momentum[place : place + 1])
            for gradient, *pieces in zip(*(torch.split(tensor, _PIECE) for tensor in tensors), strict=True):
                weights, *momentum = copies = [piece.to(device, copy=offloads) for piece in pieces]
                gradients, momenta = [gradient.to(device, weights.dtype)], list[Tensor | None](momentum)
                sgd(
                    [weights], gradients, momenta or [None], foreach=False, weight_decay=0.0, lr=outer.lr,
                    momentum=outer.momentum, dampening=0.0, nesterov=outer.nesterov, maximize=False,
                )  # fmt: skip
                copy_into(pieces, copies)

    @torch.no_grad()
    def load_agreed(self, local: int, *, late: bool = False) -> None:
        """Loads the agreed weights into a worker's model; late ones, blended with its own."""
        part, blend = self.parts[local], self._fields.blend
        for place, base in enumerate(self.base_weights(local)):
            weights, continued = self._parameter(local, place), base
            if part.at_sending:
                continued = base + (self._flat(weights) - part.at_sending[place])
            elif late and blend:
                continued = base.to(weights.device).lerp(weights.reshape(-1).to(base.dtype), blend)
            copy_into([weights], [continued])
        part.at_sending = []

    def _weights(self, local: int) -> list[Tensor]:
        """A worker's weights, flat [numel] by parameter, where the agreed ones lie; views or copies."""
        return [self._flat(self._parameter(local, place)) for place in range(len(self.ordinals))]

    def _parameter(self, local: int, place: int) -> Tensor:
        return local_tensor(self._workers[local].parameters[self.ordinals[place]])

    def _flat(self, weights: Tensor) -> Tensor:
        return on_host(weights) if self._fields.offload else weights.reshape(-1)

    # States.

    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common beside the agreed weights."""
        return {
            "sent_at": self.sent_at,
            "sent_step": self.sent_step,
            "done": self.done,
            "momentum": list(self.momentum),
        }

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        """Restores what `shared_state` returned."""
        self.sent_at, self.sent_step = float(shared["sent_at"]), int(shared["sent_step"])
        self.done = int(shared["done"])
        copy_into(self.momentum, shared["momentum"])

    def worker_state(self) -> dict[str, Any]:
        """What only this process has; waits for what is on its way, which is not merged sooner."""
        ranks = map(str, self.runner.ranks)
        return {
            "parts": {
                rank: {**vars(part), "squares": list(part.squares)}
                for rank, part in zip(ranks, self.parts, strict=True)
            },
            "in_flight": self.in_flight and self._saved(self.in_flight),
            "unsent": super().worker_state(),
        }

    def load_worker_state(self, saved: Mapping[str, Any]) -> None:
        """Restores what `worker_state` returned; raises ValueError where it is of other workers."""
        if self.in_flight is not None:
            self.in_flight.result()  # until then its rounds change what is not sent
        super().load_worker_state(saved["unsent"])
        self.parts = [self._restored_part(saved["parts"][str(rank)]) for rank in self.runner.ranks]
        self.in_flight = saved["in_flight"] and self._restored(saved["in_flight"])

    def _restored_part(self, saved: Mapping[str, Any]) -> WorkerPart:
        device = self.agreed[0].device
        return WorkerPart(
            **{**saved, "at_sending": [weights.to(device, copy=True) for weights in saved["at_sending"]]}
        )

    def take_over(self, states: Sequence[Mapping[str, Any]], models: Sequence[FormerModel]) -> None:
        """See `LocalRounds.reshard`."""
        if self.in_flight is not None:
            self.in_flight.result()  # until then its rounds change what is not sent
            self.in_flight = None
        runner, unsent = self.runner, [state["unsent"] for state in states]
        counts = [state["workers"] for state in unsent]
        saved = ranks_together([state["parts"] for state in states], counts)
        residuals = ranks_together([state["ranks"] for state in unsent], counts)
        parts, former, now = [self._restored_part(part) for part in saved], len(saved), runner.workers
        moved = [
            self._moved(part, former, residuals[rank]["residuals"], models[rank])
            for rank, part in enumerate(parts)
        ]
        self.reshard(unsent)
        names, share = self.patterns[0].setting.names, share_of(former, now, self.patterns[0].reduction)
        for local, rank in enumerate(runner.ranks):
            examples = sum(part.examples for part in parts[rank::now])
            self.parts[local] = WorkerPart(list(parts[model_of(rank, former)].squares), examples)
            weights = bases = self.base_weights(local)
            moves, factor = moved[rank::now], share
            if examples:  # as they weigh in the workers' mean
                factor = 1 / examples
                moves = [
                    {name: part.examples * move for name, move in moves_of.items()}
                    for moves_of, part in zip(moves, parts[rank::now], strict=True)
                ]
            if move := merged(moves, factor):  # a worker that joins has none
                weights = [base - move[name].to(base.device) for name, base in zip(names, bases, strict=True)]
            for place, continued in enumerate(weights):
                copy_into([self._parameter(local, place)], [continued])
            if parts[0].at_sending:
                self.parts[local].at_sending = [base.clone() for base in bases]
        if in_flight := states[0]["in_flight"]:  # the mean is the same everywhere
            first, processes = (runner.ranks[0], now) if runner.waits else (0, 1)
            counted = [state["in_flight"]["traffic"] for state in states[first::processes]]
            if in_flight["examples"] is not None:  # the mean is of as many workers as there were
                in_flight = {**in_flight, "examples": in_flight["examples"] * now / former}
            self.in_flight = self._restored(in_flight, counted)

    def _moved(
        self, part: WorkerPart, workers: int, residuals: Mapping[str, Tensor], model: FormerModel
    ) -> dict[str, Tensor]:
        """How far one of the former workers moved since it continued from the agreed weights, or sent."""
        share, moved = self._fields.unsent_share(workers) / (part.weight or 1.0), {}
        names = self.patterns[0].setting.names
        for place, (name, ordinal) in enumerate(zip(names, self.ordinals, strict=True)):
            base = self.agreed[place]
            if part.at_sending:
                base = part.at_sending[place]
            elif share and name in residuals:
                base = base - share * residuals[name].to(base.device)
            moved[name] = (base - model.weights[ordinal].reshape(-1).to(base.device)).cpu()
            if model.pending is not None:
                moved[name] = moved[name] + model.pending[ordinal].cpu()
        return moved

    def _saved(self, in_flight: InFlight) -> dict[str, Any]:
        outcome, side = in_flight.result()
        if isinstance(outcome.mean, RefusedUpdate):
            raise self.refusal(outcome.mean)
        return {
            "merge_at": in_flight.merge_at,
            "mean": outcome.mean,
            "traffic": outcome.traffic.state_dict(),
            "tallies": [[list(astuple(tally)) for tally in record.tallies] for record in outcome.records],
            "examples": side.examples,
            "buffers": dict(side.buffers),
        }

    def _restored(
        self, saved: Mapping[str, Any], counts: Sequence[Mapping[str, Any]] | None = None
    ) -> InFlight:
        """What was saved, or with what former processes counted that this one takes over."""
        traffic = Traffic(self.runner.workers)
        if counts is None:
            traffic.load_state_dict(saved["traffic"])
        for former in counts or ():
            traffic.add_sums(former)
        columns = [[PartTally(*tally) for tally in tallies] for tallies in saved["tallies"]]
        mean = saved["mean"].to(self.agreed[0].device, copy=True)
        outcome = Outcome(mean, [ExchangeRecord(traffic, [column]) for column in columns], 0.0)
        side = SideData(saved["examples"], saved["buffers"])
        return InFlight(int(saved["merge_at"]), lambda: (outcome, side))


def on_host(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A flat copy in the host's memory, which is pinned where the tensor is on a GPU."""
    copy = torch.empty(tensor.shape, dtype=dtype or tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor).reshape(-1)


def empty_like(tensor: Tensor) -> Tensor:
    """An empty tensor, pinned where another one is."""
    return torch.empty_like(tensor, pin_memory=tensor.is_pinned())


def fragments_of(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The ordinals of parameters of these sizes, in their order, in parts with nearly as many elements each.

    There is at most one part a parameter.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    total, before = sum(sizes), 0
    for ordinal, size in enumerate(sizes):
        number = min(count - 1, (before + size // 2) * count // max(1, total))
        left = len(sizes) - ordinal  # each later part needs one
        empty = next((place for place, part in enumerate(parts) if not part), count)
        parts[empty if left <= count - empty else min(number, empty)].append(ordinal)
        before += size
    return parts
