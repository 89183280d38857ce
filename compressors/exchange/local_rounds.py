"""Local steps: workers train models of their own, and agree on weights from time to time.

After some steps, each worker hands in its weights, or their difference to what it went on from. All continue
from the mean of the weights, or from the outer optimizer's step along the mean of the differences (DiLoCo,
arXiv 2311.08105). A model may be exchanged in fragments, one after the other, and a fragment may be on its
way while workers train on; it is merged when it has arrived (Streaming DiLoCo, arXiv 2501.18512).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..bucket.layout import PartTally
from ..bucket.ledger import Step, Traffic
from ..errors import WorkersDisagree
from ..spans import RECORDER
from .agreement import difference
from .averaging import Averaging, Outcome
from .patterns.base import RefusedUpdate
from .resizing import merged, model_of, ranks_together, share_of
from .rounds import ExchangeRecord, PendingRounds
from .side_channel import LEFT, RoundId, SideChannel
from .tensors import buffers_of, copy_into, load_buffers, local_tensor


@dataclass(frozen=True)
class Merging:
    """How workers' weights become one."""

    every: float = 0
    """Steps (or examples) from one sending of a fragment to the next; 0: only when told."""
    exchange: Literal["weights", "difference"] = "difference"
    unsent: float = 0.0
    """The part of its residual that a worker adds to its own weights (CSER, arXiv 2007.13221): its gradients
    then reflect its own steps at once, not only when they have been sent."""
    delay: int = 0
    """Steps for which a fragment is on its way while workers train on."""
    blend: float | None = None
    """The part of its own weights that a worker keeps when a fragment arrives late (alpha in Streaming
    DiLoCo). None: it keeps the steps that it took meanwhile, whole, on top of the agreed weights; so what is
    sent is sent once."""


@dataclass(frozen=True)
class LocalWorker:
    """One worker's model."""

    parameters: Sequence[Tensor]
    """Those that are trained, of any shape and float type; of a sharded one, this process's shard."""
    model: nn.Module | None = None
    """Whose buffers are exchanged."""


class _Arrived(NamedTuple):
    """What a fragment's rounds came to, and what was told beside them."""

    outcome: Outcome
    examples: float | None
    """All workers', where they weigh."""
    buffers: Mapping[str, Tensor]
    """Worker 0's, by name."""
    finished: int | None = None
    """A worker whose `finish()` ended with this round, where that of this one did not."""


@dataclass
class _InFlight:
    """A fragment that was sent, and has not been merged."""

    merge_at: int
    """Step after which it is."""
    arrived: Callable[[], _Arrived]
    """Waits for it."""


@dataclass
class Fragment:
    """A part of the model that is exchanged in rounds of its own."""

    averaging: Averaging
    ordinals: Sequence[int]
    """Of its parameters."""
    sent_at: float = 0.0
    """The progress at its last sending, or at what counts as one at first."""
    sent_step: int = 0
    """The step of it."""
    examples: list[float] = field(default_factory=list)
    """By worker here, from which it learned since then."""
    weights: list[float] = field(default_factory=list)
    """By worker here, what its part was multiplied by at the last sending."""
    squares: list[list[float]] = field(default_factory=list)
    """By worker here and parameter, the sum of its gradients' mean squares since then."""
    in_flight: _InFlight | None = None
    weights_at_sending: list[list[Tensor]] = field(default_factory=list)
    """By worker here and parameter, [numel]: while a fragment is on its way, where workers keep the steps
    that they take meanwhile."""


class LocalRounds:
    """This process's workers with models of their own, and the weights that all agreed on last.

    The agreed weights are the same bits on all workers after every merging. Workers' optimizers are not
    touched.

    Attributes:
        agreed: by parameter, on its device.
        agreed_buffers: worker 0's of the latest exchange, by name.
        merging: how; `every` may change between two steps, on all workers alike.
        fragments: of the model.
        outer: the optimizer of the agreed weights.
        steps: so far.
        progress: so far, in what `every` counts.
    """

    def __init__(
        self,
        fragments: Sequence[Fragment],
        agreed: Sequence[Tensor],
        agreed_buffers: Mapping[str, Tensor],
        workers: Sequence[LocalWorker],
        merging: Merging,
        outer: torch.optim.SGD,
        traffic: Traffic,
    ) -> None:
        """Takes charge of a worker for each rank here, which continue from the agreed weights and buffers.

        Each parameter is in one of the fragments, whose averagings have one runner. What is sent is counted
        in the traffic.
        """
        self.fragments, self.merging, self.outer = list(fragments), merging, outer
        self.agreed, self.agreed_buffers, self._workers = list(agreed), dict(agreed_buffers), list(workers)
        self._runner, self._traffic = fragments[0].averaging.runner, traffic
        self.steps, self.progress = 0, 0.0
        self._finished: int | None = None
        """A worker that has no more rounds in its `finish()`, while this one has not begun its own."""
        self._unit: float | None = None
        """The mean number of a worker's examples at the first sending: they weigh 1."""
        for number, fragment in enumerate(self.fragments, 1):
            # The first one comes first, and the last one after `every` steps.
            fragment.sent_at = merging.every * (number / len(self.fragments) - 1)
            fragment.weights = [1.0 for _ in workers]
            self._begin_anew(fragment)
        for local, worker in enumerate(self._workers):
            for fragment in self.fragments:
                self.load_agreed(fragment, local)
            self._load_buffers(worker)

    def _load_buffers(self, worker: LocalWorker) -> None:
        if worker.model is not None:
            load_buffers(worker.model, self.agreed_buffers)

    def _begin_anew(self, fragment: Fragment) -> None:
        fragment.sent_step = self.steps
        fragment.examples = [0.0 for _ in self._workers]
        fragment.squares = [[0.0 for _ in fragment.ordinals] for _ in self._workers]

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """Runs the rounds of what is on its way, one after the other: so all workers have one order."""
        return ThreadPoolExecutor(1, "taugrad-local-rounds")

    # A step.

    def note_squares(self, local: int) -> None:
        """Takes note of a worker's gradients, before its step: weights' bits may follow from them.

        Oland-Raj's section 3.2 decides on weights' bits by the gradients (entropy(form='rms')).
        """
        if self.merging.exchange != "weights":
            return
        for fragment in self.fragments:
            for place, ordinal in enumerate(fragment.ordinals):
                gradient = self._workers[local].parameters[ordinal].grad
                if gradient is not None and gradient.numel():
                    mean = local_tensor(gradient).double().square().mean()
                    fragment.squares[local][place] += float(mean)

    def advance(
        self, step: Step, amount: float = 1, examples: Sequence[float] = (), *, due: bool = False
    ) -> bool:
        """Called after each step of the workers here; sends what is due, and merges what is to be merged.

        Args:
            step: the ledger.
            amount: by which `progress` grows.
            examples: by worker here, from which it learned; without them, workers weigh the same.
            due: whether all fragments are to be sent, whatever `every` says.

        Returns:
            Whether anything was merged.

        Raises:
            NonFiniteWeight: on every worker, if one's weights are not finite.
            PeerLost: another worker is gone, or has been silent for too long.
            WorkersDisagree: another worker is in another round, or has other buffers.
            CorruptMessage: what arrived is damaged, or does not fit.
        """
        self.steps, self.progress = self.steps + 1, self.progress + amount
        every, merged = self.merging.every, False
        for fragment in self.fragments:
            for local, number in enumerate(examples):
                fragment.examples[local] += number
            if fragment.in_flight is not None and self.steps >= fragment.in_flight.merge_at:
                merged |= self._merge(fragment, step)
        # Where workers take unequal steps, what is due in one step of a worker is due in several of another.
        for fragment in sorted(self.fragments, key=_sendings):
            if due or (every and self.progress - fragment.sent_at >= every):
                merged |= self._merge(fragment, step)  # where one is still on its way
                self._send(fragment, weighted=bool(examples))
                if not self.merging.delay:
                    merged |= self._merge(fragment, step)
        return merged

    def finish(self, step: Step, *, weighted: bool = False, every_fragment: bool = False) -> None:
        """Sends what has moved since it was sent, and merges everything; raises as `advance` does.

        Args:
            step: the ledger.
            weighted: whether `advance` is told examples.
            every_fragment: whether to send all, moved or not: where workers do not take equally many steps,
                one does not know whether another's has moved.
        """
        for fragment in self.fragments:
            self._merge(fragment, step)
        # In the order in which they would be sent next: another worker may have sent one of them already.
        due = [each for each in self.fragments if every_fragment or self.steps > each.sent_step]
        if due and self._finished is not None:
            rounds = {self._finished: {LEFT: "0"}, self._runner.ranks[0]: {LEFT: str(len(due))}}
            raise WorkersDisagree(difference(rounds))
        for left, fragment in zip(reversed(range(len(due))), sorted(due, key=_sendings), strict=True):
            self._send(fragment, weighted=weighted, left=left)
            self._merge(fragment, step)

    def _send(self, fragment: Fragment, *, weighted: bool, left: int = -1) -> None:
        """Compresses a fragment of every worker here, and starts its rounds."""
        number, model = self.fragments.index(fragment), self._workers[0].model
        side = SideChannel(
            self._runner.carriers,
            RoundId(number, fragment.averaging.done, left),
            fragment.examples if weighted else (),
            buffers_of(model) if model is not None and not number else {},
        )
        if weighted:
            if self._unit is None:  # once, this waits for a delay of the link
                self._unit = side.examples / self._runner.workers or 1.0
            fragment.weights = [each / self._unit for each in fragment.examples]
        averaging, steps = fragment.averaging, self.steps - fragment.sent_step
        pending = []
        for local, (pattern, squares) in enumerate(zip(averaging.patterns, fragment.squares, strict=True)):
            if self.merging.exchange == "weights":
                means = (math.sqrt(each / steps) if steps else 0.0 for each in squares)
                pattern.rms = dict(zip(pattern.setting.names, means, strict=True))
            parts, weight = self.pseudo_gradient(fragment, local), fragment.weights[local]
            weighed = parts if weight == 1 else [weight * each for each in parts]
            pending.append(averaging.begin(local, weighed))
        outcome: Future[Outcome] = Future()
        if self.merging.delay and self._runner.waits:
            outcome = self._thread.submit(_run, averaging, pending, side)
        else:
            outcome.set_result(_run(averaging, pending, side))

        def arrived() -> _Arrived:
            result = outcome.result()
            examples, finished = side.examples if weighted else None, side.finished if left < 0 else None
            return _Arrived(result, examples, side.buffers, finished)

        fragment.in_flight = _InFlight(self.steps + self.merging.delay, arrived)
        if self.merging.delay and self.merging.blend is None:
            workers = range(len(self._workers))
            fragment.weights_at_sending = [
                [each.flatten().clone() for each in self._own(fragment, local)] for local in workers
            ]
        fragment.sent_at = self.progress
        self._begin_anew(fragment)

    def _merge(self, fragment: Fragment, step: Step) -> bool:
        """Waits for a fragment that is on its way, and lets the workers here continue from it."""
        going, fragment.in_flight = fragment.in_flight, None
        if going is None:
            return False
        began = perf_counter()
        outcome, examples, buffers, self._finished = going.arrived()
        blocked_s = perf_counter() - began if self.merging.delay and self._runner.waits else outcome.waited_s
        step.exchange_s += outcome.waited_s
        step.blocked_s += blocked_s
        mean = fragment.averaging.finish(outcome, step, self._traffic)
        assert mean is not None, "what is not finite is refused"
        patterns = [each for some in self.fragments for each in some.averaging.patterns]
        step.residual_squares = sum(each.residual_squares() for each in patterns) / len(self._workers)
        if examples is not None:
            assert self._unit is not None
            mean = mean * (self._runner.workers * self._unit / (examples or 1.0))
        self.apply(fragment, mean)
        self.agreed_buffers = dict(buffers) or self.agreed_buffers
        for local, worker in enumerate(self._workers):
            self.load_agreed(fragment, local, late=bool(self.merging.delay))
            if buffers:
                self._load_buffers(worker)
        fragment.weights_at_sending = []
        return True

    # One round, in its parts.

    @torch.no_grad()
    def pseudo_gradient(self, fragment: Fragment, local: int) -> list[Tensor]:
        """A worker's weights; or the base weights minus these, so that a step along it leads to them."""
        own = [each.reshape(-1) for each in self._own(fragment, local)]
        if self.merging.exchange == "weights":
            return own
        starts = self.base_weights(fragment, local)
        return [start - each.to(start.dtype) for start, each in zip(starts, own, strict=True)]

    @torch.no_grad()
    def base_weights(self, fragment: Fragment, local: int) -> list[Tensor]:
        """The weights that local steps start from: agreed ones, less a part of the residual; flat [numel]."""
        agreed = [self.agreed[each].detach().reshape(-1) for each in fragment.ordinals]
        if not self.merging.unsent:
            return agreed
        # Residuals stay as they are from one exchange to the next, and so this is the same before and after.
        part = self.merging.unsent / (fragment.weights[local] or 1.0)
        kept = fragment.averaging.patterns[local].unsent()
        return [each - part * own for each, own in zip(agreed, kept, strict=True)]

    @torch.no_grad()
    def load_agreed(self, fragment: Fragment, local: int, *, late: bool = False) -> None:
        """Loads the agreed weights into a worker's model; late ones, blended with its own."""
        starts, own = self.base_weights(fragment, local), self._own(fragment, local)
        if fragment.weights_at_sending:
            since = zip(starts, own, fragment.weights_at_sending[local], strict=True)
            starts = [start + (each.reshape(-1) - handed) for start, each, handed in since]
        elif late and (blend := self.merging.blend):
            starts = [start.lerp(each.reshape(-1), blend) for start, each in zip(starts, own, strict=True)]
        copy_into(own, starts)

    def _own(self, fragment: Fragment, local: int) -> list[Tensor]:
        """A worker's weights, by parameter of a fragment."""
        return [local_tensor(self._workers[local].parameters[each]) for each in fragment.ordinals]

    @torch.no_grad()
    def apply(self, fragment: Fragment, mean: Tensor) -> None:
        """Takes the workers' mean weights, or the outer optimizer's step along their mean difference."""
        agreed = [self.agreed[each] for each in fragment.ordinals]
        shares = torch.split(mean, [each.numel() for each in agreed])
        if self.merging.exchange == "weights":
            copy_into(agreed, shares)
            return
        for each, share in zip(agreed, shares, strict=True):
            each.grad = share.view_as(each).to(each.dtype)
        self.outer.step()  # parameters without a gradient stay as they are
        self.outer.zero_grad()

    # States.

    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common beside the agreed weights: plain numbers and tensors."""
        return {
            "outer": self.outer.state_dict(),
            "steps": self.steps,
            "unit": self._unit,
            "fragments": [
                {"sent_at": each.sent_at, "sent_step": each.sent_step, "done": each.averaging.done}
                for each in self.fragments
            ],
        }

    def own_state(self) -> dict[str, Any]:
        """What only this process has; waits for what is on its way, which is not merged sooner."""
        return {
            "workers": self._runner.workers,
            "progress": self.progress,
            "fragments": [
                {
                    "examples": list(each.examples),
                    "weights": list(each.weights),
                    "squares": [list(some) for some in each.squares],
                    "in_flight": each.in_flight and _saved(each.in_flight, each.averaging),
                    "weights_at_sending": [list(some) for some in each.weights_at_sending],
                    "unsent": each.averaging.own_state(),
                }
                for each in self.fragments
            ],
        }

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        """Takes over what `shared_state` gave; raises ValueError where it is of other fragments."""
        if len(shared["fragments"]) != len(self.fragments):
            raise ValueError(
                f"the state of {len(shared['fragments'])} fragments, this run has {len(self.fragments)}"
            )
        self.outer.load_state_dict(shared["outer"])
        self.steps, self._unit = int(shared["steps"]), shared["unit"]
        for fragment, saved in zip(self.fragments, shared["fragments"], strict=True):
            fragment.sent_at, fragment.sent_step = float(saved["sent_at"]), int(saved["sent_step"])
            fragment.averaging.done = int(saved["done"])

    def load_own(self, own: Mapping[str, Any]) -> None:
        """Takes over what `own_state` gave to the same workers; raises ValueError where it does not fit."""
        self.progress = float(own["progress"])
        for fragment, saved in zip(self.fragments, own["fragments"], strict=True):
            if fragment.in_flight is not None:
                fragment.in_flight.arrived()  # until then its rounds change what is not sent
            fragment.averaging.load(saved["unsent"])
            fragment.examples, fragment.weights = list(saved["examples"]), list(saved["weights"])
            fragment.squares = [list(each) for each in saved["squares"]]
            going = saved["in_flight"]
            fragment.in_flight = going and self._restored(fragment, going)
            fragment.weights_at_sending = self._here(fragment, saved["weights_at_sending"])

    def _here(self, fragment: Fragment, weights: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Saved weights, on the device of the model."""
        devices = [self.agreed[each].device for each in fragment.ordinals]
        return [[a.to(at, copy=True) for a, at in zip(some, devices, strict=True)] for some in weights]

    def reshard(
        self,
        states: Sequence[Mapping[str, Any]],
        models: Sequence[Sequence[Tensor]],
        waiting: Sequence[Sequence[Tensor] | None],
    ) -> None:
        """Takes over what another number of workers had; `load_shared` comes before it.

        How far workers have moved since they last continued from the agreed weights still has to be sent,
        like a residual, and is merged in the same way, into the weights of the workers that take it over.

        Args:
            states: what `own_state` gave to each of their processes.
            models: by former worker and parameter, its weights.
            waiting: by former worker, what it had not handed in before, flat [numel] by parameter.

        Raises:
            ValueError: they are not the states of all workers of a run, or do not fit.
        """
        self.progress = max(float(each["progress"]) for each in states)
        for number, fragment in enumerate(self.fragments):
            saved = [each["fragments"][number] for each in states]
            kept = [each["unsent"] for each in saved]
            by_rank = ranks_together([_by_worker(each) for each in saved], [each["workers"] for each in kept])
            former, now = len(by_rank), self._runner.workers
            moved = [
                self._moved(fragment, each, models[rank], waiting[rank]) for rank, each in enumerate(by_rank)
            ]
            fragment.averaging.reshard(kept)
            self._begin_anew(fragment)
            fragment.weights = [1.0 for _ in self._workers]
            share = share_of(former, now, fragment.averaging.patterns[0].reduction)
            moves = merged(moved, now, share)
            names = fragment.averaging.patterns[0].setting.names
            for local, rank in enumerate(self._runner.ranks):
                fragment.squares[local] = list(by_rank[model_of(rank, former)]["squares"])
                starts = self.base_weights(fragment, local)
                move = moves[rank] and [moves[rank][name] for name in names]  # a worker that joins has none
                own = [start - each for start, each in zip(starts, move, strict=True)] if move else starts
                copy_into(self._own(fragment, local), own)
                if saved[0]["weights_at_sending"]:
                    fragment.weights_at_sending.append([each.clone() for each in starts])
            if going := saved[0]["in_flight"]:  # the mean is the same everywhere
                rank, processes = (self._runner.ranks[0], now) if self._runner.waits else (0, 1)
                counts = [each["in_flight"]["traffic"] for each in saved[rank::processes]]
                fragment.in_flight = self._restored(fragment, going, counts)

    def _moved(
        self,
        fragment: Fragment,
        saved: Mapping[str, Any],
        model: Sequence[Tensor],
        waiting: Sequence[Tensor] | None,
    ) -> dict[str, Tensor]:
        """How far a former worker has moved since it continued from the agreed weights, by parameter.

        Or since it handed in weights, where what it takes since then is kept apart.
        """
        pattern = fragment.averaging.patterns[0]
        setting, part = pattern.setting, self.merging.unsent / (saved["weight"] or 1.0)
        unsent = saved["unsent"]["residuals"]
        moved = {}
        for place, (name, ordinal) in enumerate(zip(setting.names, fragment.ordinals, strict=True)):
            start = self.agreed[ordinal].detach().reshape(-1)
            if at_sending := saved["weights_at_sending"]:
                start = at_sending[place].to(start.device)
            elif part and name in unsent:
                start = start - part * unsent[name].to(start.device)
            moved[name] = (start - model[ordinal].reshape(-1).to(start.device)).cpu()
            if waiting is not None:
                moved[name] = moved[name] + waiting[ordinal].cpu()
        return moved

    def _restored(
        self, fragment: Fragment, saved: Mapping[str, Any], counts: Sequence[Mapping[str, Any]] | None = None
    ) -> _InFlight:
        """What was saved, or with what former processes counted that this one takes over."""
        traffic = Traffic(self._runner.workers)
        if counts is None:
            traffic.load_state_dict(saved["traffic"])
        for former in counts or ():
            traffic.add_sums(former)
        mean = saved["mean"].to(self.agreed[fragment.ordinals[0]].device, copy=True)
        records = [ExchangeRecord([[PartTally(*tally) for tally in tallies]]) for tallies in saved["tallies"]]
        arrived = _Arrived(Outcome(mean, traffic, 0.0, records), saved["examples"], saved["buffers"])
        return _InFlight(int(saved["merge_at"]), lambda: arrived)


def fragments_of(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The ordinals of parameters of these sizes, in their order, in parts with nearly as many elements each.

    There is at most one part a parameter.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    total, before = sum(sizes), 0
    for ordinal, size in enumerate(sizes):
        number = min(count - 1, (before + size // 2) * count // max(1, total))
        left = len(sizes) - ordinal  # each later part needs one
        empty = next((each for each, part in enumerate(parts) if not part), count)
        parts[empty if left <= count - empty else min(number, empty)].append(ordinal)
        before += size
    return parts


def _run(averaging: Averaging, pending: Sequence[PendingRounds], side: SideChannel) -> Outcome:
    """Runs begun rounds to their end, if all workers are in the same ones."""
    began = perf_counter()
    side.check()
    waited_s = 0.0
    if averaging.runner.waits:
        waited_s = perf_counter() - began
        RECORDER.add("exchange", "wire", began, began + waited_s, "round")
        RECORDER.add("wait", "compute", began, began + waited_s)
    outcome = averaging.run(pending)
    return replace(outcome, waited_s=outcome.waited_s + waited_s)


def _sendings(fragment: Fragment) -> int:
    """How often it was sent."""
    return fragment.averaging.done + (fragment.in_flight is not None)


def _by_worker(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a process saved of a fragment, by its workers' ranks."""
    at_sending = saved["weights_at_sending"] or [[] for _ in saved["weights"]]
    of_each = saved["weights"], saved["squares"], at_sending
    parts = zip(saved["unsent"]["ranks"].items(), *of_each, strict=True)
    return {
        rank: {"unsent": unsent, "weight": weight, "squares": squares, "weights_at_sending": weights}
        for (rank, unsent), weight, squares, weights in parts
    }


def _saved(going: _InFlight, averaging: Averaging) -> dict[str, Any]:
    arrived = going.arrived()
    if isinstance(arrived.outcome.mean, RefusedUpdate):
        raise averaging.refusal(arrived.outcome.mean)
    return {
        "merge_at": going.merge_at,
        "mean": arrived.outcome.mean,
        "traffic": arrived.outcome.traffic.state_dict(),
        "tallies": [[list(astuple(tally)) for tally in each.tallies] for each in arrived.outcome.records],
        "examples": arrived.examples,
        "buffers": dict(arrived.buffers),
    }
