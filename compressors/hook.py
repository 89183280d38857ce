"""The DDP communication hook: two lines in anyone's training script.

    state = CompressionState(ddp, {"kind": "wgt", "tau": 1e-3})
    ddp.register_comm_hook(state, compressed_allgather)

A gradient's way: backward fills a bucket; each of its parameters gets its residual added, what reaches
tau is sent, the rest is kept (`bucket.compress`); the update becomes a message, the messages of all
workers are exchanged, and every worker adds them up in rank order, so that replicas stay bit-identical.
"""

from collections.abc import Mapping
from threading import Lock
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, which stubs do not name
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from . import bucket as buckets
from . import message
from .codecs.base import Bytes
from .config import CompressorConfig, NoCompression, ThresholdedConfig
from .errors import CompressionError, CorruptMessage, NonFiniteGradient
from .exchange import Gathering, start_gathering
from .ledger import Step, Totals
from .observe import Percentiles, gradient_percentiles
from .update import SparseUpdate

_STATE_VERSION = 1
_CONFIG: TypeAdapter[CompressorConfig] = TypeAdapter(CompressorConfig)


class CompressionState:
    """What compression keeps from step to step on one worker.

    Attributes:
        config: the compressor.
        residuals: by parameter name, float32 [numel], what was not sent yet; made at first use.
        last_step: the ledger of the latest backward pass, complete once `backward()` returned. With
            `nonfinite: skip`, look at `last_step.skipped` and leave the optimizer's step out if it is set.
        percentiles: by parameter name, of the last step observed (see `observe_next_step`).
        failure: what made a hook fail. DDP's `backward()` raises a RuntimeError that only quotes it.
    """

    def __init__(self, ddp: DistributedDataParallel, config: CompressorConfig | Mapping[str, Any]) -> None:
        """Prepares to compress what `ddp` synchronizes, in its process group.

        Raises:
            pydantic.ValidationError: the configuration is not valid; the message names the field.
        """
        self.config = _CONFIG.validate_python(config)
        self.residuals: dict[str, Tensor] = {}
        self.last_step = Step()
        self.percentiles: dict[str, Percentiles] = {}
        self.failure: CompressionError | None = None
        self._group: dist.ProcessGroup = ddp.process_group
        self._parameters = {
            name: parameter for name, parameter in ddp.module.named_parameters() if parameter.requires_grad
        }
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._hold_back_zeros = bool(ddp.find_unused_parameters or ddp.static_graph)
        self._scratch = buckets.Scratch()
        self._observing = False
        self._before_last = Totals()
        self._own_messages: list[tuple[Bytes, list[buckets.Part]]] = []
        # Held for one step more: freed by gloo's thread, a collective's tensors would want Python's lock
        # from a thread that may meet the interpreter's end, and the process would abort.
        self._works: list[dist.Work] = []
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
        """Has the next backward pass note every parameter's gradient percentiles."""
        self._observing = True

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on elsewhere: plain numbers and tensors, for `torch.save`.

        Call it between steps. The tensors are the live ones, not copies.
        """
        self._settle()
        return {
            "version": _STATE_VERSION,
            "residuals": dict(self.residuals),
            "totals": self.totals.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: another version, a part missing, or a residual of a parameter that is not here or of
                another size. Nothing is taken over then.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"version {state.get('version')!r} of a state; this program reads {_STATE_VERSION}"
            )
        missing = {"residuals", "totals"} - set(state)
        if missing:
            raise ValueError(f"a state without {' and '.join(sorted(missing))}")
        residuals: dict[str, Tensor] = {}
        for name, residual in state["residuals"].items():
            parameter = self._parameters.get(name)
            if parameter is None:
                raise ValueError(f"a residual for {name!r}, which is no parameter of this model")
            if residual.shape != (parameter.numel(),) or residual.dtype != torch.float32:
                raise ValueError(
                    f"the residual of {name!r} is {residual.dtype} {tuple(residual.shape)}; "
                    f"this model needs float32 {(parameter.numel(),)}"
                )
            residuals[name] = residual.to(parameter.device, copy=True)
        totals = Totals.from_state_dict(state["totals"])
        self.residuals, self._before_last, self.last_step = residuals, totals, Step()
        self._own_messages = []

    def _begin(self, bucket: GradBucket) -> Step:
        """The ledger of the backward pass that this bucket belongs to."""
        if bucket.index() == 0:
            self._settle()
            self._before_last = self.totals
            self.last_step = Step(steps=1)
            self._works = []
            if self._observing:
                self.percentiles = {}
        if self._observing:
            self._observe(bucket)
            self._observing = not bucket.is_last()
        return self.last_step

    def _settle(self) -> None:
        """Puts a skipped step's updates back into the residuals; doing it again changes nothing."""
        if self.last_step.skipped:
            for own, parts in self._own_messages:
                update = message.read(own)
                assert isinstance(update, SparseUpdate)
                buckets.put_back(update, parts)
        self._own_messages = []

    def _parts(self, bucket: GradBucket) -> list[buckets.Part]:
        buffer = bucket.buffer()
        parts, start = [], 0
        for parameter in bucket.parameters():
            name = self._names[id(parameter)]
            gradient = buffer[start : start + parameter.numel()]
            residual = self.residuals.get(name)
            if residual is None:
                residual = torch.zeros(parameter.numel(), dtype=torch.float32, device=buffer.device)
                self.residuals[name] = residual
            parts.append(buckets.Part(name, gradient, residual))
            start += parameter.numel()
        return parts

    def _observe(self, bucket: GradBucket) -> None:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self.percentiles[self._names[id(parameter)]] = gradient_percentiles(gradient)

    def _name_at(self, bucket: GradBucket, ordinal: int) -> str:
        name: str = self._names[id(bucket.parameters()[ordinal])]
        return name


def compressed_allgather(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    """Synchronizes one bucket; register it with `ddp.register_comm_hook(state, compressed_allgather)`.

    Returns:
        A future of the bucket's buffer, holding the mean (or sum) of all workers' updates.

    Raises:
        NonFiniteGradient: through the future, on every worker, where a gradient holds NaN or Inf and the
            configuration does not say `nonfinite: skip`.
        CorruptMessage: through the future, where a message is damaged or does not fit the bucket.
    """
    if isinstance(state.config, NoCompression):
        return _allreduce(state, bucket)
    return _allgather(state, state.config, bucket)


def _allreduce(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    step = state._begin(bucket)
    buffer = bucket.buffer()
    if state.config.reduction == "mean":
        buffer.mul_(1.0 / state.workers)  # DDP without a hook multiplies too, before it adds
    elements = buffer.numel() * state.workers
    step.elements += elements
    step.sent += elements
    step.paper_bits += 32 * elements
    step.wire_bytes += buffer.element_size() * elements
    for parameter in bucket.parameters():
        numel = parameter.numel()
        step.layers.append(buckets.PartTally(state._names[id(parameter)], numel, numel, 0.0))
    started = perf_counter()
    work = dist.all_reduce(buffer, group=state._group, async_op=True)
    assert work is not None
    state._works.append(work)

    def finish(arrived: Future[list[Tensor]]) -> Tensor:
        summed = arrived.value()[0]
        with state._lock:
            step.exchange_s += perf_counter() - started
        # Not finite somewhere makes the sum not finite; a sum that merely overflows is looked at again.
        if not bool(torch.isfinite(summed.sum())) and not bool(torch.isfinite(summed).all()):
            broken = [not bool(torch.isfinite(gradient).all()) for gradient in bucket.gradients()]
            parameter = state._name_at(bucket, broken.index(True))
            if state.config.nonfinite == "refuse":
                raise _failed(state, NonFiniteGradient(parameter, -1))
            with state._lock:
                step.skip(parameter, -1)
        return summed

    summed: Future[list[Tensor]] = work.get_future()
    return summed.then(finish)


def _allgather(state: CompressionState, config: ThresholdedConfig, bucket: GradBucket) -> Future[Tensor]:
    step = state._begin(bucket)
    buffer = bucket.buffer()

    started = perf_counter()
    parts = state._parts(bucket)
    update, tallies = buckets.compress(
        config.kind, config.tau, parts, state._scratch, hold_back_zeros=state._hold_back_zeros
    )
    if isinstance(update, message.NonFinite):
        own = message.write_nonfinite(update)
    else:
        own = message.write(update, config.codec)
        if config.nonfinite == "skip":
            state._own_messages.append((own, parts))
    step.count_layers(tallies)
    step.taus.append(float(update.tau))
    step.compress_s += perf_counter() - started

    transport = buffer.device if dist.get_backend(state._group) == "nccl" else torch.device("cpu")
    gathering = start_gathering(own, state._group, transport)
    state._works += gathering.works
    step.blocked_s += perf_counter() - gathering.started
    step.elements += buffer.numel() * state.workers
    step.wire_bytes += gathering.wire_bytes

    def finish(arrived: Future[list[Tensor]]) -> Tensor:
        arrived.value()  # raises what the transport raised
        received = perf_counter()
        updates = _read_messages(state, config, bucket, gathering)
        _sum_updates(updates, config, buffer)
        with state._lock:
            step.exchange_s += received - gathering.started
            step.decompress_s += perf_counter() - received
            for rank, each in enumerate(updates):
                if isinstance(each, SparseUpdate):
                    step.sent += each.k
                    step.paper_bits += each.paper_bits
                else:
                    step.skip(state._name_at(bucket, each.ordinal), rank)
        return buffer

    return gathering.arrived.then(finish)


def _read_messages(
    state: CompressionState, config: ThresholdedConfig, bucket: GradBucket, gathering: Gathering
) -> list[SparseUpdate | message.NonFinite]:
    """Every worker's update, checked; nothing of any is applied if one is not valid."""
    updates = []
    for rank, received in enumerate(gathering.messages()):
        try:
            update = message.read(received)
        except CorruptMessage as reason:
            raise _failed(state, CorruptMessage(f"the message of worker {rank}: {reason}")) from None
        if update.rule != config.kind or update.n != bucket.buffer().numel():
            problem = CorruptMessage(
                f"worker {rank} sent {update.rule} of {update.n} elements; "
                f"this worker's bucket is {config.kind} of {bucket.buffer().numel()}"
            )
            raise _failed(state, problem)
        if isinstance(update, message.NonFinite) and update.ordinal >= len(bucket.parameters()):
            problem = CorruptMessage(
                f"worker {rank} names parameter {update.ordinal} of the bucket, which has fewer"
            )
            raise _failed(state, problem)
        if isinstance(update, message.NonFinite) and config.nonfinite == "refuse":
            raise _failed(state, NonFiniteGradient(state._name_at(bucket, update.ordinal), rank))
        updates.append(update)
    return updates


def _sum_updates(
    updates: list[SparseUpdate | message.NonFinite], config: ThresholdedConfig, buffer: Tensor
) -> None:
    """Fills the buffer with the updates' sum, added in rank order, or their mean."""
    total = buffer if buffer.dtype == torch.float32 else torch.empty_like(buffer, dtype=torch.float32)
    total.zero_()
    for update in updates:
        if isinstance(update, SparseUpdate):
            buckets.add_to(update, total)
    if config.reduction == "mean":
        # A tensor and no number: a GPU multiplies by a number's reciprocal, which rounds otherwise.
        total.div_(torch.tensor(len(updates), dtype=torch.float32, device=total.device))
    if total is not buffer:
        buffer.copy_(total)


def _failed(state: CompressionState, problem: CompressionError) -> CompressionError:
    """Notes the first failure, so that a training loop can raise it in place of DDP's RuntimeError."""
    state.failure = state.failure or problem
    return problem
