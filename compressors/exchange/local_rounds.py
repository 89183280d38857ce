"""Local steps: workers train models of their own, and agree on weights from time to time.

When a round begins and ends: each fragment of the model is sent every so many steps, one after the other, and
is merged at once, or after a delay. `fragment` has what is sent, and how workers continue from it.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any

from torch import Tensor

from ..bucket.ledger import Step, Traffic
from ..errors import WorkersDisagree
from ..method import Method
from ..method.local import LocalFields
from ..spans import RECORDER
from .agreement import difference
from .averaging import Outcome
from .fragment import FormerModel, Fragment, InFlight, LocalWorker
from .patterns import pattern_for, returning, self_contained
from .patterns.base import Setting
from .rounds import PendingRounds
from .runner import Runner
from .side_channel import LEFT, SideChannel, SideData
from .sites import Sites
from .tensors import buffers_of, load_buffers, local_tensor


class LocalRounds:
    """This process's workers with models of their own, and the weights that all agreed on last.

    The agreed weights are the same bits on all workers after every merging. Workers' optimizers are not
    touched.

    Attributes:
        agreed: by parameter, flat [numel].
        agreed_buffers: worker 0's of the latest exchange, by name.
        every: steps (or examples) from one sending of a fragment to the next; 0: only when told. It may
            change between two steps, on all workers alike.
        fragments: of the model.
        traffic: of what was merged.
        steps: so far.
        progress: so far, in what `every` counts.
    """

    def __init__(
        self,
        runner: Runner,
        setting: Setting,
        parts: Sequence[Sequence[int]],
        methods: tuple[Method, Method | None],
        fields: LocalFields,
        every: float,
        agreed: Sequence[Tensor],
        agreed_buffers: Mapping[str, Tensor],
        workers: Sequence[LocalWorker],
        sites: Sites | None = None,
    ) -> None:
        """Takes charge of a worker for each rank here, which continue from the agreed weights and buffers.

        The setting is of all parameters, and its tensors lie where residuals will; each part has the ordinals
        of a fragment's. The methods are those of what workers send, and of sums on their way back.
        """
        self.agreed, self.agreed_buffers, self._workers = list(agreed), dict(agreed_buffers), list(workers)
        self.every, self._fields, self._runner = every, fields, runner
        self.traffic = Traffic(runner.workers)
        method, back = methods
        back = returning(method) if back is None else back
        if fields.exchange == "weights":
            method, back = self_contained(method), self_contained(back)
        self.fragments = []
        for number, ordinals in enumerate(parts):
            names, like = setting.names, setting.like
            part = replace(setting, names=[names[i] for i in ordinals], like=[like[i] for i in ordinals])
            patterns = [
                pattern_for(fields.pattern, method, back, replace(part, rank=rank), sites)
                for rank in runner.ranks
            ]
            self.fragments.append(
                Fragment(runner, patterns, f"round {number}", ordinals, agreed, workers, fields)
            )
        self.steps, self.progress = 0, 0.0
        self._finished: int | None = None
        """A worker that has no more rounds in its `finish()`, while this one has not begun its own."""
        self._unit: float | None = None
        """The mean number of a worker's examples at the first sending: they weigh 1."""
        for number, fragment in enumerate(self.fragments, 1):
            # The first one comes first, and the last one after `every` steps.
            fragment.sent_at = every * (number / len(self.fragments) - 1)
            self._load(fragment, buffers=number == 1)

    def _load(self, fragment: Fragment, *, late: bool = False, buffers: bool) -> None:
        """Lets the workers here continue from the agreed weights, and perhaps buffers."""
        for local, worker in enumerate(self._workers):
            fragment.load_agreed(local, late=late)
            if buffers and worker.model is not None:
                load_buffers(worker.model, self.agreed_buffers)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """Runs the rounds of what is on its way, one after the other: so all workers have one order."""
        return ThreadPoolExecutor(1, "taugrad-local-rounds")

    def note_squares(self, local: int) -> None:
        """Takes note of a worker's gradients, before its step: weights' bits may follow from them.

        Oland-Raj's section 3.2 decides on weights' bits by the gradients (entropy(form='rms')).
        """
        if self._fields.exchange != "weights":
            return
        for fragment in self.fragments:
            for place, ordinal in enumerate(fragment.ordinals):
                gradient = self._workers[local].parameters[ordinal].grad
                if gradient is not None and gradient.numel():
                    mean = local_tensor(gradient).double().square().mean()
                    fragment.parts[local].squares[place] += float(mean)

    def advance(
        self, step: Step, amount: float = 1, examples: Sequence[float] = (), *, due: bool = False
    ) -> bool:
        """Called after each step of the workers here; sends what is due, and merges what is to be merged.

        `progress` grows by the amount. Workers weigh by the examples from which they learned, if there are
        any. `due`: all fragments are to be sent, whatever `every` says. Returns whether anything was merged.
        Raises NonFiniteWeight, PeerLost, WorkersDisagree or CorruptMessage as `LocalSteps.step` does.
        """
        self.steps, self.progress = self.steps + 1, self.progress + amount
        merged = False
        for fragment in self.fragments:
            for part, number in zip(fragment.parts, examples, strict=False):
                part.examples += number
            if fragment.in_flight is not None and self.steps >= fragment.in_flight.merge_at:
                merged |= self._merge(fragment, step)
        # Where workers take unequal steps, what is due in one step of a worker is due in several of another.
        for fragment in sorted(self.fragments, key=lambda fragment: fragment.sendings):
            if due or (self.every and self.progress - fragment.sent_at >= self.every):
                merged |= self._merge(fragment, step)  # where one is still on its way
                self._send(fragment, weighted=bool(examples))
                if not self._fields.delay_steps:
                    merged |= self._merge(fragment, step)
        return merged

    def finish(self, step: Step, *, weighted: bool = False, every_fragment: bool = False) -> None:
        """Sends what has moved since it was sent, and merges everything; raises as `advance` does.

        `weighted`: whether `advance` is told examples. `every_fragment`: whether to send all, moved or not:
        where workers do not take equally many steps, one does not know whether another's has moved.
        """
        for fragment in self.fragments:
            self._merge(fragment, step)
        # In the order in which they would be sent next: another worker may have sent one of them already.
        due = [fragment for fragment in self.fragments if every_fragment or self.steps > fragment.sent_step]
        due.sort(key=lambda fragment: fragment.sendings)
        if due and self._finished is not None:
            rounds = {self._finished: {LEFT: "0"}, self._runner.ranks[0]: {LEFT: str(len(due))}}
            raise WorkersDisagree(difference(rounds))
        for left, fragment in zip(reversed(range(len(due))), due, strict=True):
            self._send(fragment, weighted=weighted, left=left)
            self._merge(fragment, step)

    def _send(self, fragment: Fragment, *, weighted: bool, left: int = -1) -> None:
        """Compresses a fragment of every worker here, and starts its rounds."""
        number, parts = self.fragments.index(fragment), fragment.parts
        model, delay = self._workers[0].model, self._fields.delay_steps
        side = SideChannel(
            self._runner.carriers,
            (number, fragment.done, left),
            [part.examples for part in parts] if weighted else (),
            buffers_of(model) if model is not None and not number else {},
        )
        if weighted:
            if self._unit is None:  # once, this waits for a delay of the link
                self._unit = (side.received.examples or 0.0) / self._runner.workers or 1.0
            for part in parts:
                part.weight = part.examples / self._unit
        pending = fragment.send(self.steps - fragment.sent_step)
        result: Future[tuple[Outcome, SideData]] = Future()
        if delay and self._runner.waits:
            result = self._thread.submit(_run, fragment, pending, side)
        else:
            result.set_result(_run(fragment, pending, side))
        fragment.in_flight = InFlight(self.steps + delay, result.result)
        fragment.sent_at = self.progress
        fragment.begin_anew(self.steps)

    def _merge(self, fragment: Fragment, step: Step) -> bool:
        """Waits for a fragment that is on its way, and lets the workers here continue from it."""
        in_flight, fragment.in_flight = fragment.in_flight, None
        if in_flight is None:
            return False
        began, late = perf_counter(), bool(self._fields.delay_steps)
        outcome, side = in_flight.result()
        self._finished = side.finished
        step.exchange_s += outcome.waited_s
        step.blocked_s += perf_counter() - began if late and self._runner.waits else outcome.waited_s
        mean = fragment.finish(outcome, step, self.traffic)
        assert mean is not None, "what is not finite is refused"
        patterns = [pattern for fragment in self.fragments for pattern in fragment.patterns]
        step.residual_squares = sum(pattern.residual_squares() for pattern in patterns) / len(self._workers)
        if side.examples is not None:
            assert self._unit is not None
            mean = mean * (self._runner.workers * self._unit / (side.examples or 1.0))
        fragment.apply(mean)
        self.agreed_buffers = dict(side.buffers) or self.agreed_buffers
        self._load(fragment, late=late, buffers=bool(side.buffers))
        return True

    # States.

    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common beside the agreed weights: plain numbers and tensors."""
        fragments = [fragment.shared_state() for fragment in self.fragments]
        return {"steps": self.steps, "unit": self._unit, "fragments": fragments}

    def worker_state(self) -> dict[str, Any]:
        """What only this process has; waits for what is on its way, which is not merged sooner."""
        fragments = [fragment.worker_state() for fragment in self.fragments]
        return {"workers": self._runner.workers, "progress": self.progress, "fragments": fragments}

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        """Restores what `shared_state` returned; raises ValueError where it is of other fragments."""
        if len(shared["fragments"]) != len(self.fragments):
            raise ValueError(
                f"the state of {len(shared['fragments'])} fragments, this run has {len(self.fragments)}"
            )
        self.steps, self._unit = int(shared["steps"]), shared["unit"]
        for fragment, saved in zip(self.fragments, shared["fragments"], strict=True):
            fragment.load_shared(saved)

    def load_worker_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `worker_state` gave to the same workers; raises ValueError if it does not fit."""
        self.progress = float(state["progress"])
        for fragment, saved in zip(self.fragments, state["fragments"], strict=True):
            fragment.load_worker_state(saved)

    def reshard(self, states: Sequence[Mapping[str, Any]], models: Sequence[FormerModel]) -> None:
        """Takes over what another number of workers had; `load_shared` comes before it.

        How far workers have moved since they last continued from the agreed weights still has to be sent,
        like a residual, and is merged in the same way, into the weights of the workers that take it over.
        `states` is what `worker_state` gave to each of their processes. Raises ValueError where they are not
        the states of all workers of a run, or do not fit.
        """
        self.progress = max(float(state["progress"]) for state in states)
        for number, fragment in enumerate(self.fragments):
            fragment.take_over([state["fragments"][number] for state in states], models)


def _run(fragment: Fragment, pending: Sequence[PendingRounds], side: SideChannel) -> tuple[Outcome, SideData]:
    """Runs begun rounds to their end, if all workers are in the same ones."""
    began = perf_counter()
    received, waited_s = side.received, 0.0
    if fragment.runner.waits:
        waited_s = perf_counter() - began
        RECORDER.add("exchange", "wire", began, began + waited_s, "round")
        RECORDER.add("wait", "compute", began, began + waited_s)
    outcome = fragment.run(pending)
    return replace(outcome, waited_s=outcome.waited_s + waited_s), received
