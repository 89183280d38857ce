"""The DDP communication hook: two lines in anyone's training script.

    state = CompressionState(ddp, "wgt(density(0.01)) | golomb_rice")
    ddp.register_comm_hook(state, compressed_allgather)

A gradient's way: backward fills a bucket; each of its parameters gets its residual added, a rule decides
what is sent and keeps the rest, updates become messages (`bucket.Compressor`); the messages of all workers
are exchanged, and every worker adds them up in rank order, so that replicas stay bit-identical. Before their
first exchange the workers make sure that all of them do the same (`agreement.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, which stubs do not name
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from .agreement import described, flattened, require_agreement
from .backend import compressor_for
from .bucket import Compressor, Incoming, Outgoing
from .config import AnyMethod, NoCompression, PowerSGD, read_config
from .errors import CompressionError, CorruptMessage, NonFiniteGradient, WorkersDisagree
from .exchange import Exchange, ExchangeForm, Gathering
from .feedback import Feedback
from .gloo_threads import Once
from .ledger import Step, Totals
from .message import VERSION, NonFinite
from .observe import GradientStatistics, gradient_statistics
from .parts import Layout, Part, PartTally
from .powersgd import PowerSGD as TorchPowerSGD
from .rules import Context

_STATE_VERSION = 5
"""Since 5 a state says whose it is."""


@dataclass(frozen=True)
class _BucketPlan:
    """What is the same for a bucket in every step.

    Parameters stand with the model's last one first: DDP orders them otherwise in a process's first backward
    pass than in later ones, and what is sent, and its bytes, must not depend on that.
    """

    names: list[str]
    elements: list[int]
    """Of the parameters as they lie in the buffer."""
    places: list[int]
    """Of each name, which of those it is."""
    layout: Layout | None
    """None where the hook cuts no messages."""

    def gradients(self, buffer: Tensor) -> list[tuple[str, Tensor]]:
        """Each parameter's name and share of the buffer."""
        shares = torch.split(buffer, self.elements)
        return [(name, shares[place]) for name, place in zip(self.names, self.places, strict=True)]


class CompressionState:
    """What compression keeps from step to step on one worker.

    Attributes:
        config: the method.
        feedback: residuals, velocities and thresholds, by parameter name.
        exchange: how messages go, and what it remembers of their lengths.
        last_step: the ledger of the latest backward pass, complete once `backward()` returned. With
            `nonfinite: skip`, look at `last_step.skipped` and leave the optimizer's step out if it is set.
        statistics: by parameter name, of the last step observed (see `observe_next_step`).
        failure: what made a hook fail. DDP's `backward()` raises a RuntimeError that only quotes it.
        gradient_scale: what gradients are multiplied by before anything else; set it to the inverse of a
            loss's scale, such as 1 / GradScaler.get_scale().
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        config: AnyMethod | Mapping[str, Any] | str,
        *,
        threads: int | None = None,
        exchange: ExchangeForm = "exact",
    ) -> None:
        """Prepares to compress what `ddp` synchronizes, in its process group.

        Args:
            ddp: the model.
            config: a method, its dictionary, or its line such as `wgt(density(0.01)) | golomb_rice`.
            threads: how many may share a pass on the CPU; by default as many as torch uses. No result
                depends on it.
            exchange: how messages go to the other workers; no result depends on it.

        Raises:
            pydantic.ValidationError: the configuration is not valid; the message names the field.
        """
        self.config = read_config(config)
        self.feedback = Feedback()
        self.exchange = Exchange(exchange)
        self.last_step = Step()
        self.statistics: dict[str, GradientStatistics] = {}
        self.failure: CompressionError | None = None
        self.gradient_scale = 1.0
        self._group: dist.ProcessGroup = ddp.process_group
        self._parameters = {
            name: parameter for name, parameter in ddp.module.named_parameters() if parameter.requires_grad
        }
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._ordinals = {name: ordinal for ordinal, name in enumerate(self._parameters)}
        self._compressor: Compressor | None = None
        self._powersgd: TorchPowerSGD | None = None
        if isinstance(self.config, PowerSGD):
            self._powersgd = TorchPowerSGD(
                self._group,
                self._parameters,
                rank=self.config.rank,
                start=self.config.start,
                min_compression_rate=self.config.min_rate,
                feedback=self.config.feedback,
                warm_start=self.config.warm_start,
                seed=self.config.seed,
            )
        elif not isinstance(self.config, NoCompression):
            self._compressor = compressor_for(self.config, _device_of(self._parameters))
        self._context = Context(
            threads=torch.get_num_threads() if threads is None else threads,
            hold_back_zeros=bool(ddp.find_unused_parameters or ddp.static_graph),
            memories=self.feedback.memories,
        )
        self._ddp_options = {
            "find_unused_parameters": str(bool(ddp.find_unused_parameters)),
            "static_graph": str(bool(ddp.static_graph)),
        }
        self._plans: dict[tuple[int, ...], _BucketPlan] = {}
        """Of buckets that all workers described alike: index, and the ids of the parameters."""
        self._observing = False
        self._before_last = Totals()
        self._outgoing: list[tuple[Outgoing, list[Part]]] = []
        # Held for one step more: freed by gloo's thread, a collective's tensors would want Python's lock
        # from a thread that may meet the interpreter's end, and the process would abort.
        self._works: list[dist.Work] = []
        self._unsent: list[_Exchange] = []
        self._waiting: list[_Exchange] = []
        self._lock = Lock()  # several buckets' callbacks may run at once

    @property
    def workers(self) -> int:
        """How many workers synchronize."""
        return dist.get_world_size(self._group)

    @property
    def totals(self) -> Totals:
        """The ledger of all steps so far."""
        totals = Totals(**self._before_last.state_dict())
        totals.add(self.last_step)
        return totals

    def observe_next_step(self) -> None:
        """Has the next backward pass note every parameter's gradient statistics."""
        self._observing = True

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on elsewhere: plain numbers and tensors, for `torch.save`.

        Call it between steps. The tensors are the live ones, not copies.
        """
        self._settle()
        return {
            "version": _STATE_VERSION,
            "rank": dist.get_rank(self._group),
            "workers": self.workers,
            **self.feedback.state_dict(),
            "powersgd": None if self._powersgd is None else self._powersgd.state_dict(),
            "capacities": dict(self.exchange.capacities),
            "totals": self.totals.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: another version, a part missing, the state of another worker or of another number of
                workers, a tensor of a parameter that is not here or of another size, or the state of another
                method. Nothing is taken over then.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"version {state.get('version')!r} of a state; this program reads {_STATE_VERSION}: "
                "older states do not say whose they are"
            )
        missing = {"capacities", "powersgd", "rank", "totals", "workers"} - set(state)
        if missing:
            raise ValueError(f"a state without {' and '.join(sorted(missing))}")
        theirs, ours = (state["rank"], state["workers"]), (dist.get_rank(self._group), self.workers)
        if theirs != ours:
            raise ValueError(
                f"the state of rank {theirs[0]} of {theirs[1]} workers, this is rank {ours[0]} of {ours[1]}: "
                "each worker's residual belongs to its part of the data"
            )
        totals = Totals.from_state_dict(state["totals"])
        if (state["powersgd"] is None) != (self._powersgd is None):
            raise ValueError(f"the state is of another method than {self.config}")
        self.feedback.load_state_dict(state, self._parameters)
        if self._powersgd is not None:
            self._powersgd.load_state_dict(state["powersgd"])
        self.exchange.capacities = {int(n): int(most) for n, most in state["capacities"].items()}
        self._context.memories = self.feedback.memories
        self._before_last, self.last_step = totals, Step()
        self._outgoing = []

    def _begin(self, bucket: GradBucket) -> tuple[Step, _BucketPlan]:
        """The ledger of the backward pass that this bucket belongs to, and the bucket's plan."""
        if bucket.index() == 0:
            self._settle()
            self._before_last = self.totals
            self._context.iteration = self._before_last.steps
            self.last_step = Step(steps=1)
            self._works, self._unsent, self._waiting = [], [], []
            if self._observing:
                self.statistics = {}
        if self.gradient_scale != 1:
            bucket.buffer().mul_(self.gradient_scale)
        if self._observing:
            self._observe(bucket)
            self._observing = not bucket.is_last()
        return self.last_step, self._plan_of(bucket)

    def _plan_of(self, bucket: GradBucket) -> _BucketPlan:
        """A bucket's plan. Of a new bucket what is done with it is compared with the other workers first.

        After the first step DDP takes worker 0's layout of buckets everywhere. So those who agreed on the
        first layout meet a new one in the same step.
        """
        parameters = bucket.parameters()
        key = (bucket.index(), *map(id, parameters))
        plan = self._plans.get(key)
        if plan is None:
            if self.workers > 1:
                self._require_agreement(bucket)
            plan = self._plans[key] = self._new_plan(parameters)
        return plan

    def _new_plan(self, parameters: Sequence[Tensor]) -> _BucketPlan:
        names = [self._names[id(parameter)] for parameter in parameters]
        elements = [parameter.numel() for parameter in parameters]
        places = sorted(range(len(names)), key=lambda place: -self._ordinals[names[place]])
        ordered = [names[place] for place in places]
        layout = None
        if self._compressor is not None:
            layout = self._compressor.layout(ordered, [elements[place] for place in places])
        return _BucketPlan(ordered, elements, places, layout)

    def _require_agreement(self, bucket: GradBucket) -> None:
        buffer = bucket.buffer()
        try:
            self._works += require_agreement(
                self._description(bucket), self._group, _transport_of(self._group, buffer)
            )
        except WorkersDisagree as problem:
            raise _failed(self, problem) from None

    def _description(self, bucket: GradBucket) -> dict[str, str]:
        """What this worker does with a bucket, as far as all must do the same."""
        ways = {}
        if self._compressor is not None:
            room = self.exchange.capacities.get(bucket.buffer().numel())
            ways = {
                "exchange": self.exchange.form,
                "room": str(room),
                "message version": str(VERSION),
            }
        names = {
            f"bucket {bucket.index()}, parameter {place}": self._names[id(parameter)]
            for place, parameter in enumerate(bucket.parameters())
        }
        done = {"steps done": str(self._before_last.steps)}
        return flattened(self.config) | ways | self._ddp_options | described(self._parameters) | names | done

    def _settle(self) -> None:
        """Puts a skipped step's updates back into the residuals; doing it again changes nothing."""
        if self.last_step.skipped and self._compressor is not None:
            for outgoing, parts in self._outgoing:
                self._compressor.put_back(outgoing, parts)
        self._outgoing = []

    def _observe(self, bucket: GradBucket) -> None:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self.statistics[self._names[id(parameter)]] = gradient_statistics(gradient)

    def _name_at(self, bucket: GradBucket, ordinal: int) -> str:
        name: str = self._names[id(bucket.parameters()[ordinal])]
        return name


def _device_of(parameters: Mapping[str, Tensor]) -> torch.device:
    """Where DDP's gradients will be; it has one device."""
    return next((each.device for each in parameters.values()), torch.device("cpu"))


def _transport_of(group: dist.ProcessGroup, buffer: Tensor) -> torch.device:
    """Where a group's transport wants its buffers: NCCL on the bucket's GPU, gloo in the CPU's memory."""
    return buffer.device if dist.get_backend(group) == "nccl" else torch.device("cpu")


def compressed_allgather(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    """Synchronizes one bucket; register it with `ddp.register_comm_hook(state, compressed_allgather)`.

    Returns:
        A future of the bucket's buffer, holding the mean (or sum) of all workers' updates.

    Raises:
        NonFiniteGradient: through the future, on every worker, where a gradient holds NaN or Inf and the
            configuration does not say `nonfinite: skip`.
        CorruptMessage: through the future, where a message is damaged or does not fit the bucket.
        WorkersDisagree: in the first step, on every worker, where their methods, exchanges or models differ.
    """
    if state._powersgd is not None:
        return _low_rank(state, state._powersgd, bucket)
    if state._compressor is not None:
        return _allgather(state, state._compressor, bucket)
    return _allreduce(state, bucket)


def _allreduce(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    step, _ = state._begin(bucket)
    buffer = bucket.buffer()
    if state.config.reduction == "mean":
        buffer.mul_(1.0 / state.workers)  # DDP without a hook multiplies too, before it adds
    elements = buffer.numel() * state.workers
    step.elements += elements
    step.sent += elements
    step.paper_bits += 32 * elements
    step.wire_bytes += buffer.element_size() * elements
    _count_ring(step, buffer.element_size() * buffer.numel(), state.workers)
    _count_whole_layers(state, step, bucket)
    started = perf_counter()
    work = dist.all_reduce(buffer, group=state._group, async_op=True)
    assert work is not None
    state._works.append(work)

    def finish(arrived: Future[list[Tensor]]) -> Tensor:
        summed = arrived.value()[0]
        with state._lock:
            step.exchange_s += perf_counter() - started
        _look_for_nonfinite(state, step, bucket, summed)
        return summed

    summed: Future[list[Tensor]] = work.get_future()
    return summed.then(Once(finish))


def _count_ring(step: Step, nbytes: int, workers: int) -> None:
    """What a ring all-reduce of so many bytes moves, by its formula: the transport does not tell."""
    step.received_bytes += 2 * (workers - 1) * nbytes
    step.messages += 2 * (workers - 1) * workers


def _count_whole_layers(state: CompressionState, step: Step, bucket: GradBucket) -> None:
    for parameter in bucket.parameters():
        numel = parameter.numel()
        step.layers.append(PartTally(state._names[id(parameter)], numel, numel, 0.0, paper_bits=32 * numel))


def _look_for_nonfinite(state: CompressionState, step: Step, bucket: GradBucket, summed: Tensor) -> None:
    """Refuses or notes a sum that is not finite; a sum that merely overflows is looked at again."""
    if bool(torch.isfinite(summed.sum())) or bool(torch.isfinite(summed).all()):
        return
    broken = [not bool(torch.isfinite(gradient).all()) for gradient in bucket.gradients()]
    parameter = state._name_at(bucket, broken.index(True))
    if state.config.nonfinite == "refuse":
        raise _failed(state, NonFiniteGradient(parameter, -1))
    with state._lock:
        step.skip(parameter, -1)


def _low_rank(state: CompressionState, powersgd: TorchPowerSGD, bucket: GradBucket) -> Future[Tensor]:
    """torch's PowerSGD hook, its bytes counted."""
    step, _ = state._begin(bucket)
    elements = bucket.buffer().numel() * state.workers
    started = perf_counter()
    averaged = powersgd.synchronize(bucket)
    handed_over = powersgd.handed_over * state.workers
    step.compress_s += perf_counter() - started
    step.elements += elements
    step.sent += handed_over
    step.paper_bits += 32 * handed_over
    step.wire_bytes += bucket.buffer().element_size() * handed_over
    _count_ring(step, bucket.buffer().element_size() * powersgd.handed_over, state.workers)
    step.count_layers(
        PartTally(name, state._parameters[name].numel(), sent, 0.0, paper_bits=32 * sent)
        for name, sent in powersgd.layers.items()
    )
    started = perf_counter()

    def finish(arrived: Future[Tensor]) -> Tensor:
        mean = arrived.value()
        with state._lock:
            step.exchange_s += perf_counter() - started
        _look_for_nonfinite(state, step, bucket, mean)
        return mean.mul_(state.workers) if state.config.reduction == "sum" else mean

    return averaged.then(Once(finish))


def _allgather(state: CompressionState, compressor: Compressor, bucket: GradBucket) -> Future[Tensor]:
    step, plan = state._begin(bucket)
    buffer, layout = bucket.buffer(), plan.layout
    assert layout is not None
    _send(state)

    started = perf_counter()
    parts = state.feedback.parts(plan.gradients(buffer), layout, compressor)
    own = compressor.compress(parts, layout, state._context)
    if compressor.config.nonfinite == "skip":
        state._outgoing.append((own, parts))
    step.count_layers(own.tallies)
    step.keeps_residuals |= any(part.residual is not None for part in parts)
    step.compress_s += perf_counter() - started

    transport = _transport_of(state._group, buffer)
    gathering = state.exchange.start(own.payload, buffer.numel(), state._group, transport)
    step.blocked_s += perf_counter() - gathering.started
    step.elements += buffer.numel() * state.workers
    step.messages += state.workers * (state.workers - 1)

    def finish(gate: Future[Exception | None]) -> Tensor:
        problem = gate.value()
        if problem is not None:
            raise problem
        received = perf_counter()
        state.exchange.learn(buffer.numel(), gathering.sizes)
        incoming = _read_payloads(state, compressor, parts, layout, gathering)
        _fill(incoming, compressor, buffer, parts)
        if buffer.is_cuda and transport.type == "cpu":
            torch.cuda.current_stream(buffer.device).synchronize()  # gloo's futures know of no streams
        with state._lock:
            step.wire_bytes += gathering.wire_bytes
            step.received_bytes += gathering.wire_bytes * (state.workers - 1)
            step.exchange_s += received - gathering.started
            step.decompress_s += perf_counter() - received
            for rank, each in enumerate(incoming):
                if isinstance(each, NonFinite):
                    step.skip(parts[each.ordinal].name, rank)
                    continue
                step.sent += sum(update.k for update, _ in each)
                step.paper_bits += sum(update.paper_bits for update, _ in each)
        return buffer

    gate: Future[Exception | None] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    summed = gate.then(Once(finish))
    state._unsent.append(_Exchange(gathering, gate))
    if bucket.is_last():
        _send(state)
        _finish_waiting(state)
    return summed


@dataclass(frozen=True)
class _Exchange:
    """A bucket's exchange under way."""

    gathering: Gathering
    gate: Future[Exception | None]
    """Resolves when the messages are here, or with what went wrong: the bucket is summed up then."""

    def open(self, arrived: Future[Any]) -> None:
        """Says that the messages are here."""
        try:
            arrived.value()  # raises what the transport raised
        except Exception as problem:
            self.gate.set_result(problem)
        else:
            self.gate.set_result(None)


def _send(state: CompressionState) -> None:
    """Sends the messages of buckets whose lengths were told in hooks before: nobody waits for those by now.

    Of the last bucket it does wait: no hook follows.
    """
    unsent, state._unsent = state._unsent, []
    started = perf_counter()
    for each in unsent:
        each.gathering.send()
        if each.gathering.arrived is None:
            state._waiting.append(each)
        else:
            state._works += each.gathering.works
            each.gathering.arrived.then(Once(each.open))
    state.last_step.blocked_s += perf_counter() - started


def _finish_waiting(state: CompressionState) -> None:
    """Ends the exchanges that have no future of their own, in their order: the last bucket's has begun."""
    waiting, state._waiting = state._waiting, []
    started = perf_counter()
    for each in waiting:
        each.gathering.complete()
        state._works += each.gathering.works
    state.last_step.blocked_s += perf_counter() - started
    for each in waiting:
        each.gate.set_result(None)


def _read_payloads(
    state: CompressionState, compressor: Compressor, parts: list[Part], layout: Layout, gathering: Gathering
) -> list[Incoming]:
    """Every worker's updates, checked; nothing of any is applied if one is not valid."""
    try:
        incoming = compressor.read_all(gathering.rows(), gathering.sizes, layout)
    except CorruptMessage as reason:
        raise _failed(state, reason) from None
    for rank, received in enumerate(incoming):
        if isinstance(received, NonFinite):
            if received.ordinal >= len(parts):
                problem = CorruptMessage(
                    f"worker {rank} names parameter {received.ordinal} of the bucket, which has fewer"
                )
                raise _failed(state, problem)
            if compressor.config.nonfinite == "refuse":
                raise _failed(state, NonFiniteGradient(parts[received.ordinal].name, rank))
    return incoming


def _fill(incoming: list[Incoming], compressor: Compressor, buffer: Tensor, parts: list[Part]) -> None:
    """Fills the buffer with the updates' sum, added in rank order, or their mean."""
    starts = [part.gradient.storage_offset() for part in parts]
    total = buffer if buffer.dtype == torch.float32 and starts == sorted(starts) else None
    if total is None:
        total = torch.empty_like(buffer, dtype=torch.float32)
    compressor.total(incoming, total)
    if total is not buffer:
        for part, share in zip(parts, torch.split(total, [part.elements for part in parts]), strict=True):
            part.gradient.copy_(share)


def _failed(state: CompressionState, problem: CompressionError) -> CompressionError:
    """Notes the first failure, so that a training loop can raise it in place of DDP's RuntimeError."""
    state.failure = state.failure or problem
    return problem
