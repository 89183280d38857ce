"""FSDP2's reduce-scatter inside an island, in fewer bits.

    state = compress_reduce_scatter(model, "linear(8, block=256)")

In place of FSDP2's own reduce-scatter (`FSDPModule.set_custom_reduce_scatter`), each worker quantizes its
gradients shard by shard. One all-to-all brings each shard to the worker that has it, which adds up what
arrived in rank order, in float32 (as ZeRO++'s qgZ, section 3.3, without its second hop). No gradient is
copied to the host.

There are no residuals: one would be of the size of the whole gradient, 4 bytes for each parameter of the
model on each worker, which is the memory that FSDP2 saves. An element's error is that of one rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from .bucket.compressor import Compressor, Worker
from .bucket.layout import ParameterSlice, Shard
from .bucket.ledger import Totals
from .errors import CompressionError, NonFiniteGradient
from .exchange.agreement import described, flattened, require_agreement
from .exchange.collectives import Collectives, first_refused
from .exchange.patterns import self_contained
from .fsdp_internals import (
    BackwardPasses,
    FSDPParam,
    HSDPMeshInfo,
    NamedGroup,
    has_custom_reduce_scatter,
    named_groups,
)
from .methods import CompressedMethod, Method, read_config
from .names import plain_names, unmatched_patterns
from .ops import ops_for
from .ops.interface import Readback
from .pattern_names import FIXED_SIZE
from .worker_state import StepState

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
except ImportError as problem:
    raise ImportError(
        "compress_reduce_scatter needs a torch whose FSDPModule has set_custom_reduce_scatter; this is "
        f"{torch.__version__}"
    ) from problem

_MARK_BYTES = 16
"""Behind a message: four times 0, or NaN where a gradient is not finite. Messages then begin at multiples of
16 bytes."""


def compress_reduce_scatter(
    model: nn.Module, method: Method | Mapping[str, Any] | str, *, steps: int = 0
) -> "ReduceScatterState":
    """Sends the gradients that FSDP2 reduces inside an island in fewer bits, from the next backward pass on.

    All workers must call this. It may be combined with `compress_replicas`, and with HSDP.

    Args:
        model: under `fully_shard`, or what holds it, such as a compiled model.
        method: a method whose messages have a fixed size (every element in 1, 2, 4, 8 or 16 bits), its
            dictionary, or its line such as `linear(8, block=256)`. No residuals are kept. Ranges
            and tables are for each parameter's shard, or for each `block` of its elements.
        steps: those before, in a run that is resumed: `totals.steps` and random numbers go on from there.

    Returns:
        The state: what was sent (`last_step`, `totals`). A checkpoint needs nothing of it but `totals.steps`,
        if the method draws random numbers.

    Raises:
        ImportError: this torch has no custom reduce-scatters (of the import, too).
        TypeError: the model is not FSDP2's.
        ValueError: the method is not valid (a line names its fields that are wrong), or cannot be used; or a
            pattern matches no parameter.
        RuntimeError: a module has a custom reduce-scatter already.
    """
    return ReduceScatterState(model, _without_residuals(read_config(method)), steps)


def _without_residuals(method: Method) -> CompressedMethod:
    """The method as a reduce-scatter applies it; raises ValueError where it cannot."""
    if not isinstance(method, CompressedMethod) or not method.has_fixed_size:
        raise ValueError(f"method = {method}: its messages have no fixed size; a reduce-scatter {FIXED_SIZE}")
    if method.decay and "decay" in method.model_fields_set:
        raise ValueError(
            f"decay = {method.decay} with a reduce-scatter: it keeps no residuals, which would be as large "
            "as the whole model's gradients; leave decay out, or set 0"
        )
    if method.reduction != "mean":
        raise ValueError(
            f"reduction = {method.reduction} with a reduce-scatter: FSDP2 says what sums are divided by; "
            "leave reduction out, and call set_gradient_divide_factor"
        )
    without = self_contained(method)
    assert isinstance(without, CompressedMethod)
    return without


@dataclass(frozen=True, eq=False)
class _Rows:
    """How some parameters lie in the gradient that FSDP2 reduces: a row for each worker, with its shards."""

    names: tuple[str, ...]
    padded: list[int]
    """Elements of a shard of each, with the padding that makes all workers' shards as long."""
    row: Compressor
    """Reads one row, the message of a worker."""
    all: Compressor
    """Writes all rows."""
    elements: int
    """Elements of the parameters, without padding."""
    paper_bits: int
    """Value bits of all of these."""


class ReduceScatterState(StepState):
    """The state of quantized reduce-scatters on one worker of an FSDP2 model.

    Attributes:
        method: the method.
        last_step: what this worker sent and received in the latest step, complete once `backward()` returned.
            A step ends when an optimizer steps one of the parameters, or when gradients are cleared. With
            `nonfinite: skip`, check `last_step.skipped`, skip the optimizer's step if it is set, and clear
            the gradients, which then hold NaN.
        failure: the error that made a reduction fail; `backward()` raises it.
    """

    method: CompressedMethod

    def __init__(self, model: nn.Module, method: CompressedMethod, steps: int = 0) -> None:
        """Prepares to reduce the gradients of a model; see `compress_reduce_scatter`."""
        super().__init__(method, lambda: self._sharded)
        self._before_last = Totals(steps=steps)
        self._sharded: dict[str, nn.Parameter] = {}
        self._groups = named_groups(model)
        if any(has_custom_reduce_scatter(named.group) for named in self._groups):
            raise RuntimeError(
                "the model has a custom reduce-scatter already: call compress_reduce_scatter once"
            )
        parameters = {name: parameter for named in self._groups for parameter, name in named.names.items()}
        self._names = [name for name in plain_names(model).values() if name in parameters]
        if problems := unmatched_patterns(method.name_patterns, self._names):
            raise ValueError("; ".join(problems))
        self._sharded = {name: parameters[name].sharded_param for name in self._names}
        self._ops = ops_for(self._groups[0].group.device)
        sizes = {name: parameter.numel() for name, parameter in self._sharded.items()}
        self._readback = Readback(self._ops)
        self._worker = Worker(self._ops, dist.get_rank(), model_sizes=sizes, readback=self._readback)
        self._collectives: dict[dist.ProcessGroup, Collectives] = {}
        self._rows: dict[tuple[str, ...], _Rows] = {}
        self._holds_back = False
        """Whether FSDP2 has kept what was reduced until a pass with an all-reduce between islands."""
        self._passes = BackwardPasses(self._optimized, self._begin, self._finish)
        self._marks: list[tuple[Sequence[str], Tensor]] = []
        """By parameter that was sent in this pass: 0, or NaN where a gradient was not finite."""
        self._reduced: torch.cuda.Event | None = None
        for named in self._groups:
            module = named.group.modules[0]
            assert isinstance(module, FSDPModule)
            module.set_custom_reduce_scatter(_QuantizedReduceScatter(self, named))

    def reduce(
        self, named: NamedGroup, gradients: Tensor, shard: Tensor, group: dist.ProcessGroup, op: Any
    ) -> None:
        """Fills this worker's shard with the reduction of all workers' gradients, as FSDP2 calls for it.

        Raises CompressionError, also PeerLost and WorkersDisagree.
        """
        try:
            self._passes.on_reduction()
            self._holds_back = not named.group.all_reduce_grads
            collectives = self._collectives_of(group)
            workers = collectives.workers
            rows = self._rows_of(named.reduced(shard.numel()), named, workers)
            messages = self._messages(rows, gradients.view(workers, -1))
            arrived = torch.empty_like(messages)
            collectives.works = []  # they hold the messages of another parameter group
            collectives.run(dist.all_to_all_single, arrived, messages)
        except CompressionError as problem:
            raise self._fail(problem) from problem.__cause__
        total = shard if shard.dtype == torch.float32 else torch.empty_like(shard, dtype=torch.float32)
        received = [rows.row.read(self._ops.array(message[:-_MARK_BYTES])) for message in arrived]
        rows.row.total(received, workers if op == dist.ReduceOp.AVG else 1, total)
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):  # it does not tell its factor
            total.div_(total.new_full((), named.group.gradient_divide_factor or 1.0))
        total.add_(arrived[:, -_MARK_BYTES:].contiguous().view(torch.float32).sum())
        if total is not shard:
            shard.copy_(total)
        self._count(rows, messages)
        if total.is_cuda:
            self._reduced = torch.cuda.current_stream(total.device).record_event()

    def _messages(self, rows: "_Rows", gradients: Tensor) -> Tensor:
        """A message to each worker, uint8 [workers, bytes], of gradients [workers, elements]."""
        workers = len(gradients)
        shards = [shard for row in gradients for shard in torch.split(row, rows.padded)]
        outgoing = rows.all.compress(shards, self.totals.steps)
        rows.all.commit()  # there are no residuals to put anything back to
        self._readback.forget()  # marks say what is not finite
        marks = torch.stack(torch._foreach_norm(shards, inf)).float().mul_(0).view(workers, -1)
        self._marks.append((rows.names, marks.sum(0)))
        of_row = marks.sum(1, keepdim=True).repeat(1, _MARK_BYTES // 4).view(torch.uint8)
        return torch.cat((self._ops.tensor(outgoing.payload).view(workers, -1), of_row), 1)

    def _count(self, rows: "_Rows", messages: Tensor) -> None:
        step, others = self.last_step, len(messages) - 1
        step.elements += rows.elements
        step.sent += rows.elements
        step.paper_bits += rows.paper_bits
        step.messages += others
        step.wire_bytes += others * messages.shape[1]
        step.received_bytes += others * messages.shape[1]

    def _rows_of(self, parameters: Sequence[FSDPParam], named: NamedGroup, workers: int) -> "_Rows":
        names = tuple(named.names[parameter] for parameter in parameters)
        if names not in self._rows:
            padded = [parameter.padded_sharded_param_size.numel() for parameter in parameters]
            sizes = [self._sharded[name].numel() for name in names]
            row, every = self._compressor(names, padded), self._compressor(names * workers, padded * workers)
            exempt, fixed = set(row.layout.whole.ordinals), row.layout.fixed
            assert fixed is not None
            bits = [32 if ordinal in exempt else fixed.bits for ordinal in range(len(names))]
            self._rows[names] = _Rows(
                names,
                padded,
                row,
                every,
                sum(sizes),
                sum(size * width for size, width in zip(sizes, bits, strict=True)),
            )
        return self._rows[names]

    def _compressor(self, names: Sequence[str], padded: Sequence[int]) -> Compressor:
        """Compresses parameters, one message for as many as there are different names."""
        each = len(set(names))
        messages = len(names) // each
        slices = tuple(
            ParameterSlice(name, place, place // each * size, (place // each + 1) * size, messages * size)
            for place, (name, size) in enumerate(zip(names, padded, strict=True))
        )
        return Compressor(self.method, self._worker, Shard(0, sum(padded), slices), messages=messages)

    def _collectives_of(self, group: dist.ProcessGroup) -> Collectives:
        """Returns a group's collectives; its workers first check that they agree."""
        if group not in self._collectives:
            groups = {f"module {n}": ", ".join(named.names.values()) for n, named in enumerate(self._groups)}
            require_agreement({**flattened(self.method), **described(self._sharded), **groups}, group)
            self._collectives[group] = Collectives(group, self._ops)
        return self._collectives[group]

    def _begin(self, uncleared: set[str]) -> None:
        """Begins a backward pass with its first reduction."""
        if self._steps.begin_pass(uncleared) and not self._holds_back:
            self._begin_step()

    def _finish(self) -> None:
        """Ends a backward pass: all workers refuse or skip what one found not finite."""
        (sent, marks), self._marks = zip(*self._marks, strict=True), []
        if self._reduced is not None:
            torch.cuda.current_stream(self._ops.device).wait_event(self._reduced)
        finite = torch.isfinite(torch.cat(marks)).tolist()
        refused = {name for name, is_finite in zip(chain(*sent), finite, strict=True) if not is_finite}
        rank, workers = dist.get_rank(), dist.get_world_size()
        try:
            first = first_refused(self._all_collectives(), rank, workers, self._names, refused)
        except CompressionError as problem:
            raise self._fail(problem) from problem.__cause__
        if first is not None and self.method.nonfinite == "refuse":
            raise self._fail(NonFiniteGradient(*first))
        if first is not None:
            self.last_step.skip(*first)

    def _all_collectives(self) -> list[Collectives]:
        """All groups that reduce in this model, also those between islands, where FSDP2 itself reduces."""
        meshes = [named.group.mesh_info for named in self._groups]
        replicas = [mesh.replicate_process_group for mesh in meshes if isinstance(mesh, HSDPMeshInfo)]
        between = (Collectives(group, self._ops) for group in dict.fromkeys(replicas))
        return [*self._collectives.values(), *between]


@dataclass(frozen=True, eq=False)
class _QuantizedReduceScatter(ReduceScatter):
    """What FSDP2 calls to reduce the gradients of a parameter group."""

    state: ReduceScatterState
    named: NamedGroup

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self.state.reduce(self.named, input_tensor, output_tensor, group, op)
