"""The rounds of local steps: workers train models of their own, and agree on weights from time to time.

Each fragment of the model is sent at an interval of steps, one after the other, and is merged at once, or
after a delay (Streaming DiLoCo, arXiv 2501.18512). A worker sends its weights, or its pseudo-gradient: the
base weights, from which its steps began, minus its weights. All continue from the mean of the weights, or
from the outer optimizer's step along the mean pseudo-gradient (DiLoCo, arXiv 2311.08105).

Agreed weights, residuals and outer momentum lie on the model's device; or, with `offload`, in the host's
memory. Updates are compressed where the residuals lie. The outer optimizer steps where the model lies, in
pieces, so that its arithmetic is the same, and a GPU needs memory for one piece.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ..bucket.compressor import Worker
from ..bucket.ledger import Step, Traffic
from ..errors import NonFiniteWeight, WorkersDisagree
from ..local_fields import LocalFields
from ..methods import CompressedMethod, Method
from ..ops.parts import PartTally
from ..spans import Interval
from .agreement import difference
from .averaging import Averaging, record_wait
from .exchange import Exchange
from .lockstep import Coroutine, run
from .patterns import downlink_method, pattern_for, self_contained
from .patterns.base import ExchangeRecord, Pattern, RefusedUpdate
from .resizing import merged, model_of, ranks_together, share_of
from .side_channel import LEFT, SideChannel, SideData
from .sites import Sites
from .tensors import buffers_of, copy_into, load_buffers, local_tensor
from .worker_group import WorkerGroup

_PIECE = 1 << 20
"""Elements of which the outer optimizer steps at a time."""


@dataclass
class Agreed:
    """What all workers agreed on last, the same bits on all of them after every merging."""

    weights: list[Tensor]
    """By parameter, flat [numel]; updated in place."""
    buffers: dict[str, Tensor]
    """Worker 0's of the latest exchange, by name."""
    momentum: list[Tensor]
    """Of the outer optimizer, by parameter; empty without."""

    @classmethod
    def begin(cls, weights: Sequence[Tensor], buffers: Mapping[str, Tensor], fields: LocalFields) -> "Agreed":
        """Begins with a model's weights, which it takes over, and buffers, which it copies."""
        # Initialized to -0.0, the additive identity, so that the first momentum equals the first mean.
        momentum = [
            torch.full_like(weight, -0.0, pin_memory=weight.is_pinned())
            for weight in weights
            if fields.outer.momentum
        ]
        return cls(list(weights), {name: buffer.clone() for name, buffer in buffers.items()}, momentum)


_Result = tuple[Tensor | RefusedUpdate, SideData]


class InFlight(NamedTuple):
    """A fragment that was sent, and has not been merged."""

    merge_at: int
    """Step after which it is."""
    record: ExchangeRecord
    """Complete when there is a result."""
    result: Callable[[], _Result]
    """Waits for its rounds, and their side channel."""


class FormerModel(NamedTuple):
    """A worker's model, as another number of workers saved it."""

    weights: Sequence[Tensor]
    """By parameter."""
    moved: Sequence[Tensor] | None = None
    """By parameter, flat [numel]: how far it moved, if weights do not say it, as those of members."""


@dataclass
class WorkerPart:
    """What the worker keeps of a fragment, beside its residual."""

    squares: list[float]
    """By parameter, the sum of its gradients' mean squares since the last sending."""
    examples: float = 0.0
    """From which it learned since then."""
    weight: float = 1.0
    """What its part was multiplied by at the last sending."""
    at_sending: list[Tensor] = field(default_factory=list)
    """By parameter, flat [numel]: its weights at the last sending, while the fragment is on its way and the
    worker is to keep the steps that it takes meanwhile."""


class Fragment:
    """A part of the model that is exchanged in rounds of its own.

    Attributes:
        averaging: runs its rounds, with the worker's pattern.
        ordinals: of its parameters.
        parameters: the worker's.
        agreed: their agreed weights, flat [numel]; the same bits on all workers.
        momentum: of the outer optimizer, flat [numel] by parameter; empty without.
        part: the worker's.
        workers: that have a part in a mean.
        sent_at: the progress at its last sending, or at what counts as one at first.
        sent_step: the step of it.
        in_flight: what was sent and is not merged.
    """

    def __init__(
        self,
        group: WorkerGroup,
        pattern: Pattern,
        tag: str,
        ordinals: Sequence[int],
        agreed: Agreed,
        parameters: Sequence[Tensor],
        fields: LocalFields,
    ) -> None:
        """Takes charge of some of the parameters; `agreed` and `parameters` have all."""
        self.averaging = Averaging(group.carrier, pattern, pattern.names, tag, NonFiniteWeight)
        self.pattern, self.ordinals, self._fields, self._group = pattern, ordinals, fields, group
        self.workers = group.workers
        self.agreed = [agreed.weights[ordinal] for ordinal in ordinals]
        self.momentum = [agreed.momentum[ordinal] for ordinal in ordinals if agreed.momentum]
        self.parameters = [parameters[ordinal] for ordinal in ordinals]
        self.part = WorkerPart([])
        self.sent_at = 0.0
        self.in_flight: InFlight | None = None
        self.begin_anew(0)

    def begin_anew(self, step: int) -> None:
        """Notes that it was sent after a step."""
        self.sent_step = step
        self.part.examples, self.part.squares = 0.0, [0.0 for _ in self.ordinals]

    @property
    def agreed_by_name(self) -> dict[str, Tensor]:
        """The agreed weights by parameter, flat [numel]."""
        return dict(zip(self.pattern.names, self.agreed, strict=True))

    @property
    def sendings(self) -> int:
        """How often it was sent."""
        return self.averaging.done + (self.in_flight is not None)

    def send(self, steps: int, weight: float = 1.0) -> Exchange:
        """Compresses what the worker sends after so many steps, and sends the first messages.

        Multiplied by a weight; with the former one, the worker continued from the agreed weights.
        """
        part, pattern, rms = self.part, self.pattern, None
        if self._fields.exchange == "weights":
            means = (math.sqrt(square / steps) if steps else 0.0 for square in part.squares)
            rms = dict(zip(pattern.names, means, strict=True))
        update, part.weight = self.pseudo_gradient(), weight
        if weight != 1:
            update = [weight * tensor for tensor in update]
        elif self._fields.delay_steps and not pattern.compresses_at_once:
            update = [tensor.clone() for tensor in update]  # they may be the weights, which steps change
        exchange = self.averaging.begin(update, rms=rms, weights=self.agreed_by_name)
        self.note_sending()
        return exchange

    def note_sending(self) -> None:
        """Notes the worker's weights, if it is to keep the steps that it takes with a delay."""
        if self._fields.delay_steps and self._fields.blend is None:
            self.part.at_sending = [weights.clone() for weights in self._weights()]

    @torch.no_grad()
    def pseudo_gradient(self) -> list[Tensor]:
        """The worker's weights; or the base weights minus these, so that a step along it leads to them."""
        weights = self._weights()
        if self._fields.exchange == "weights":
            return weights
        bases = self.base_weights()
        return [base - weight.to(base.dtype) for base, weight in zip(bases, weights, strict=True)]

    @torch.no_grad()
    def base_weights(self) -> list[Tensor]:
        """The weights that local steps start from: agreed ones, less a part of the residual; flat [numel]."""
        if not self._fields.unsent:
            return self.agreed
        # Residuals stay as they are from one exchange to the next, and so this is the same before and after.
        share = self._fields.unsent_share(self.workers) / max(self.part.weight, 1.0)
        residuals = self.pattern.unsent()
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
            device = self.parameters[place].device
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
    def load_base(self, *, late: bool = False) -> None:
        """Loads the base weights into the worker's model; late ones, blended with its own."""
        part, blend = self.part, self._fields.blend
        for place, base in enumerate(self.base_weights()):
            weights, continued = local_tensor(self.parameters[place]), base
            if part.at_sending:
                continued = base + (self._flat(weights) - part.at_sending[place])
            elif late and blend:
                continued = base.to(weights.device).lerp(weights.reshape(-1).to(base.dtype), blend)
            copy_into([weights], [continued])
        part.at_sending = []

    def _weights(self) -> list[Tensor]:
        """The worker's weights, flat [numel] by parameter, where the agreed ones lie; views or copies."""
        return [self._flat(local_tensor(parameter)) for parameter in self.parameters]

    def _flat(self, weights: Tensor) -> Tensor:
        return on_host(weights) if self._fields.offload else weights.reshape(-1)

    # States.

    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common beside the agreed weights."""
        return {
            "sent_at": self.sent_at,
            "sent_step": self.sent_step,
            "done": self.averaging.done,
            "momentum": list(self.momentum),
        }

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        """Restores what `shared_state` returned."""
        self.sent_at, self.sent_step = float(shared["sent_at"]), int(shared["sent_step"])
        self.averaging.done = int(shared["done"])
        copy_into(self.momentum, shared["momentum"])

    def worker_state(self) -> dict[str, Any]:
        """What only this worker has; waits for what is on its way, which is not merged sooner."""
        return {
            "parts": {str(self._group.rank): {**vars(self.part), "squares": list(self.part.squares)}},
            "in_flight": self.in_flight and self._saved(self.in_flight),
            "unsent": self.averaging.worker_state(),
        }

    def load_worker_state(self, saved: Mapping[str, Any]) -> None:
        """Restores what `worker_state` returned; raises ValueError where it is of another worker."""
        if self.in_flight is not None:
            self.in_flight.result()  # until then its rounds change what is not sent
        self.averaging.load_worker_state(saved["unsent"])
        self.part = self._restored_part(saved["parts"][str(self._group.rank)])
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
        unsent, rank, now = [state["unsent"] for state in states], self._group.rank, self._group.workers
        counts = [state["workers"] for state in unsent]
        saved = ranks_together([state["parts"] for state in states], counts)
        residuals = ranks_together([state["ranks"] for state in unsent], counts)
        parts, former = [self._restored_part(part) for part in saved], len(saved)
        moves = [
            self._moved(parts[of], former, residuals[of]["residuals"], models[of])
            for of in range(rank, former, now)
        ]
        self.averaging.reshard(unsent)
        names, factor = self.pattern.names, share_of(former, now, self.pattern.reduction)
        examples = sum(part.examples for part in parts[rank::now])
        self.part = WorkerPart(list(parts[model_of(rank, former)].squares), examples)
        weights = bases = self.base_weights()
        if examples:  # as they weigh in the workers' mean
            factor = 1 / examples
            moves = [
                {name: part.examples * move for name, move in moves_of.items()}
                for moves_of, part in zip(moves, parts[rank::now], strict=True)
            ]
        if move := merged(moves, factor):  # a worker that joins has none
            weights = [base - move[name].to(base.device) for name, base in zip(names, bases, strict=True)]
        copy_into(map(local_tensor, self.parameters), weights)
        if parts[0].at_sending:
            self.part.at_sending = [base.clone() for base in bases]
        if in_flight := states[0]["in_flight"]:  # the mean is the same everywhere
            counted = ranks_together([state["in_flight"]["traffic"] for state in states], counts)[rank::now]
            if in_flight["examples"] is not None:  # the mean is of as many workers as there were
                in_flight = {**in_flight, "examples": in_flight["examples"] * now / former}
            self.in_flight = self._restored(in_flight, counted)

    def _moved(
        self, part: WorkerPart, workers: int, residuals: Mapping[str, Tensor], model: FormerModel
    ) -> dict[str, Tensor]:
        """How far one of the former workers moved since it continued from the agreed weights, or sent."""
        share, moved = self._fields.unsent_share(workers) / max(part.weight, 1.0), {}
        names = self.pattern.names
        if model.moved is not None:
            return {name: model.moved[ordinal] for name, ordinal in zip(names, self.ordinals, strict=True)}
        for place, (name, ordinal) in enumerate(zip(names, self.ordinals, strict=True)):
            base = self.agreed[place]
            if part.at_sending:
                base = part.at_sending[place]
            elif share and name in residuals:
                base = base - share * residuals[name].to(base.device)
            moved[name] = (base - model.weights[ordinal].reshape(-1).to(base.device)).cpu()
        return moved

    def _saved(self, in_flight: InFlight) -> dict[str, Any]:
        mean, side = in_flight.result()
        if isinstance(mean, RefusedUpdate):
            raise self.averaging.refusal(mean)
        return {
            "merge_at": in_flight.merge_at,
            "mean": mean,
            "traffic": {str(self._group.rank): in_flight.record.traffic.state_dict()},
            "tallies": [[list(astuple(tally)) for tally in in_flight.record.layers]],
            "examples": side.examples,
            "buffers": dict(side.buffers),
        }

    def _restored(
        self, saved: Mapping[str, Any], counts: Sequence[Mapping[str, Any]] | None = None
    ) -> InFlight:
        """What was saved, or with what former processes counted that this one takes over."""
        traffic = Traffic(self._group.workers)
        if counts is None:
            traffic.load_state_dict(saved["traffic"][str(self._group.rank)])
        for former in counts or ():
            traffic.add_sums(former)
        column = [PartTally(*tally) for tally in saved["tallies"][0]]
        mean = saved["mean"].to(self.agreed[0].device, copy=True)
        result = mean, SideData(saved["examples"], saved["buffers"])
        return InFlight(int(saved["merge_at"]), ExchangeRecord(traffic, columns=[column]), lambda: result)


class FragmentRounds:
    """A worker with a model of its own, and the weights that all agreed on last.

    The worker's optimizer is not touched.

    Attributes:
        agreed: what all agreed on last; simulated workers share it.
        every: steps (or examples) from one sending of a fragment to the next; 0: only when told. It may
            change between two steps, on all workers alike.
        fragments: of the model.
        traffic: of what was merged, by worker, or by member's slot.
        steps: so far.
        progress: so far, in what `every` counts.
    """

    fragments: Sequence[Fragment]

    def __init__(self, agreed: Agreed, every: float, model: nn.Module | None, workers: int) -> None:
        """Begins; the model's buffers are exchanged, too, if it is given."""
        self.agreed, self.every, self._model, self.traffic = agreed, every, model, Traffic(workers)
        self.steps, self.progress = 0, 0.0

    def _count(self, amount: float, examples: float | None) -> None:
        """Counts a step."""
        self.steps, self.progress = self.steps + 1, self.progress + amount
        for fragment in self.fragments:
            fragment.part.examples += examples or 0.0

    def load_agreed(self, model: nn.Module) -> None:
        """Loads the agreed weights and buffers into the model, to be evaluated or saved."""
        for fragment in self.fragments:
            copy_into(map(local_tensor, fragment.parameters), fragment.agreed)
        load_buffers(model, self.agreed.buffers)

    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common beside the agreed weights: plain numbers and tensors."""
        return {"steps": self.steps, "fragments": [fragment.shared_state() for fragment in self.fragments]}

    def worker_state(self) -> dict[str, Any]:
        """What only this worker has; waits for what is on its way."""
        return {
            "progress": self.progress,
            "fragments": [fragment.worker_state() for fragment in self.fragments],
        }

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        """Restores what `shared_state` returned; raises ValueError where it is of other fragments."""
        if len(shared["fragments"]) != len(self.fragments):
            raise ValueError(
                f"the state of {len(shared['fragments'])} fragments, this run has {len(self.fragments)}"
            )
        self.steps = int(shared["steps"])
        for fragment, saved in zip(self.fragments, shared["fragments"], strict=True):
            fragment.load_shared(saved)

    def load_worker_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `worker_state` gave to the same worker; raises ValueError if it does not fit."""
        self.progress = float(state["progress"])
        for fragment, saved in zip(self.fragments, state["fragments"], strict=True):
            fragment.load_worker_state(saved)


class LocalRounds(FragmentRounds):
    """The rounds of a worker in a fixed group."""

    def __init__(
        self,
        group: WorkerGroup,
        worker: Worker,
        names: Sequence[str],
        parts: Sequence[Sequence[int]],
        methods: tuple[Method, Method | None],
        fields: LocalFields,
        every: float,
        agreed: Agreed,
        parameters: Sequence[Tensor],
        model: nn.Module | None = None,
        sites: Sites | None = None,
    ) -> None:
        """Takes charge of a worker, which continues from the agreed weights and buffers.

        The worker's passes run where residuals lie; the names are of all parameters, and each part has the
        ordinals of a fragment's. The methods are those of what workers send, and of sums on the way back. The
        parameters may be of any shape and floating dtype; of DTensors, the local shards are exchanged.
        """
        super().__init__(agreed, every, model, group.workers)
        self._fields, self._group = fields, group
        method, downlink = methods
        downlink = downlink_method(method) if downlink is None else downlink
        if fields.exchange == "weights":
            method, downlink = self_contained(method), self_contained(downlink)
        self._keeps_residuals = isinstance(method, CompressedMethod) and method.keeps_residuals
        self.fragments = list[Fragment]()
        for number, ordinals in enumerate(parts):
            sizes = {names[ordinal]: agreed.weights[ordinal].numel() for ordinal in ordinals}
            pattern = pattern_for(fields.pattern, method, downlink, worker, sizes, sites=sites)
            self.fragments.append(
                Fragment(group, pattern, f"round {number}", ordinals, agreed, parameters, fields)
            )
        self._finished: int | None = None
        """A worker that has no more rounds in its `finish()`, while this one has not begun its own."""
        self._unit: float | None = None
        """The mean number of a worker's examples at the first sending: they weigh 1."""
        for number, fragment in enumerate(self.fragments, 1):
            # The first one comes first, and the last one after `every` steps.
            fragment.sent_at = every * (number / len(self.fragments) - 1)
            self._load(fragment, buffers=number == 1)

    def _load(self, fragment: Fragment, *, late: bool = False, buffers: bool) -> None:
        """Lets the worker continue from the agreed weights, and perhaps buffers."""
        fragment.load_base(late=late)
        if buffers and self._model is not None:
            load_buffers(self._model, self.agreed.buffers)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """Runs the rounds of what is on its way, one after the other: so all workers have one order."""
        return ThreadPoolExecutor(1, "taugrad-local-rounds")

    def note_squares(self) -> None:
        """Notes the worker's gradients before its step, from which `entropy(form="rms")` chooses bit widths.

        See Oland-Raj, section 3.2.
        """
        for fragment in self.fragments if self._fields.exchange == "weights" else ():
            for place, parameter in enumerate(fragment.parameters):
                if parameter.grad is not None and parameter.grad.numel():
                    mean = local_tensor(parameter.grad).double().square().mean()
                    fragment.part.squares[place] += float(mean)

    def advance(
        self, step: Step, amount: float = 1, examples: float | None = None, *, due: bool = False
    ) -> Coroutine[bool]:
        """Called after each step of the worker; sends what is due, and merges what is to be merged.

        `progress` grows by the amount. Workers weigh by the examples from which they learned, if there are
        any. `due`: all fragments are to be sent, whatever `every` says. Returns whether anything was merged.
        Raises NonFiniteWeight, PeerLost, WorkersDisagree or CorruptMessage as `LocalSteps.step` does.
        """
        self._count(amount, examples)
        merged = False
        for fragment in self.fragments:
            if fragment.in_flight is not None and self.steps >= fragment.in_flight.merge_at:
                merged |= yield from self._merge(fragment, step)
        # Where workers take unequal steps, what is due in one step of a worker is due in several of another.
        for fragment in sorted(self.fragments, key=lambda fragment: fragment.sendings):
            if due or (self.every and self.progress - fragment.sent_at >= self.every):
                merged |= yield from self._merge(fragment, step)  # where one is still on its way
                yield from self._send(fragment, weighted=examples is not None)
                if not self._fields.delay_steps:
                    merged |= yield from self._merge(fragment, step)
        return merged

    def finish(self, step: Step, *, weighted: bool = False, every_fragment: bool = False) -> Coroutine[None]:
        """Sends what has moved since it was sent, and merges everything; raises as `advance` does.

        `weighted`: whether `advance` is told examples. `every_fragment`: whether to send all, moved or not:
        where workers do not take equally many steps, one does not know whether another's has moved.
        """
        for fragment in self.fragments:
            yield from self._merge(fragment, step)
        # In the order in which they would be sent next: another worker may have sent one of them already.
        due = [fragment for fragment in self.fragments if every_fragment or self.steps > fragment.sent_step]
        due.sort(key=lambda fragment: fragment.sendings)
        if due and self._finished is not None:
            rounds = {self._finished: {LEFT: "0"}, self._group.rank: {LEFT: str(len(due))}}
            raise WorkersDisagree(difference(rounds))
        for left, fragment in zip(reversed(range(len(due))), due, strict=True):
            yield from self._send(fragment, weighted=weighted, left=left)
            yield from self._merge(fragment, step)

    def _send(self, fragment: Fragment, *, weighted: bool, left: int = -1) -> Coroutine[None]:
        """Compresses and sends a fragment; ends with its rounds, or with a delay at once."""
        number, part, delay = self.fragments.index(fragment), fragment.part, self._fields.delay_steps
        side = SideChannel(
            self._group.carrier,
            (number, fragment.averaging.done, left),
            part.examples if weighted else None,
            buffers_of(self._model) if self._model is not None and not number else {},
        )
        weight, waited = 1.0, list[Interval]()
        if weighted:
            waits = self._keeps_residuals and (left >= 0 or not delay)
            mean = self._unit
            if mean is None or waits:  # for a delay of the link
                began = perf_counter()
                mean = ((yield lambda: side.received).examples or 0.0) / self._group.workers or 1.0
                waited.append((began, perf_counter()))
            self._unit = self._unit or mean
            # Where there are few examples, as in a last round, moves weigh more, not the residuals.
            weight = part.examples / min(mean, self._unit)
        exchange = fragment.send(self.steps - fragment.sent_step, weight)
        for interval in waited:
            record_wait(exchange.record, *interval)
        result = yield from self._result(fragment, exchange, side)
        fragment.in_flight = InFlight(self.steps + delay, exchange.record, result)
        fragment.sent_at = self.progress
        fragment.begin_anew(self.steps)

    def _result(
        self, fragment: Fragment, exchange: Exchange, side: SideChannel
    ) -> Coroutine[Callable[[], _Result]]:
        """Runs begun rounds to their end, or with a delay lets another thread do it; what waits for them."""
        rest = self._completed(fragment, exchange, side)
        if self._fields.delay_steps and self._group.carrier.waits:
            device = fragment.parameters[0].device
            stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
            exchange.record.compressed_before = len(exchange.record.compressing)
            return self._thread.submit(_run_on, stream, rest).result
        result = yield from rest
        return lambda: result

    def _completed(self, fragment: Fragment, exchange: Exchange, side: SideChannel) -> Coroutine[_Result]:
        """Runs begun rounds to their end, if all workers are in the same ones."""
        began = perf_counter()
        received = yield lambda: side.received
        record_wait(exchange.record, began, perf_counter())
        return (yield from fragment.averaging.complete(exchange)), received

    def _merge(self, fragment: Fragment, step: Step) -> Coroutine[bool]:
        """Waits for a fragment that is on its way, and lets the worker continue from it."""
        in_flight, fragment.in_flight = fragment.in_flight, None
        if in_flight is None:
            return False
        began, late = perf_counter(), bool(self._fields.delay_steps)
        result, side = in_flight.result()
        self._finished = side.finished
        step.blocked_s += perf_counter() - began if late else in_flight.record.waited_s
        mean = fragment.averaging.finish(result, in_flight.record, step, self.traffic)
        assert mean is not None, "what is not finite is refused"
        step.residual_squares = sum(other.averaging.residual_squares for other in self.fragments)
        yield partial(self._apply, fragment, mean, side)
        self._load(fragment, late=late, buffers=bool(side.buffers))
        return True

    def _apply(self, fragment: Fragment, mean: Tensor, side: SideData) -> None:
        if side.examples is not None:
            assert self._unit is not None
            usual = self._group.workers * self._unit
            total = max(side.examples, usual) if self._keeps_residuals else side.examples
            mean = mean * (usual / (total or 1.0))
        fragment.apply(mean)
        self.agreed.buffers = dict(side.buffers) or self.agreed.buffers

    # States.

    def shared_state(self) -> dict[str, Any]:
        return {**super().shared_state(), "unit": self._unit}

    def worker_state(self) -> dict[str, Any]:
        return {**super().worker_state(), "workers": self._group.workers}

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        super().load_shared(shared)
        self._unit, self._finished = shared["unit"], None

    def reshard(self, states: Sequence[Mapping[str, Any]], models: Sequence[FormerModel]) -> None:
        """Takes over what another number of workers had; `load_shared` comes before it.

        How far workers have moved since they last continued from the agreed weights still has to be sent,
        like a residual, and is merged in the same way, into the weights of the worker that takes it over.
        `states` is what `worker_state` gave to each of their processes. Raises ValueError where they are not
        the states of all workers of a run, or do not fit.
        """
        self.progress = max(float(state["progress"]) for state in states)
        for number, fragment in enumerate(self.fragments):
            fragment.take_over([state["fragments"][number] for state in states], models)


def _run_on(stream: torch.cuda.Stream | None, rounds: Coroutine[_Result]) -> _Result:
    """Runs rounds in another thread, on the stream of the one that uses their result."""
    with torch.cuda.stream(stream):
        return run(rounds)


def on_host(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A flat copy in the host's memory, which is pinned where the tensor is on a GPU."""
    dtype, pinned = dtype or tensor.dtype, tensor.is_cuda
    copy = torch.empty(tensor.shape, dtype=dtype, device="cpu", pin_memory=pinned)
    return copy.copy_(tensor).reshape(-1)


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
