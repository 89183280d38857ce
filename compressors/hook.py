"""Gradient compression for DistributedDataParallel by a communication hook.

    state = compress_gradients(model, "wgt(density(0.01)) | golomb_rice")

DDP calls `compression_hook` with each bucket. The state names its parameters, and `reducers/` exchanges
what is in it, with a class for each way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from .bucket.accumulated import AccumulatedGradients
from .bucket.bucket import Bucket
from .bucket.layout import MemoryOrder
from .errors import CompressionError
from .exchange.agreement import described
from .gloo_threads import Once
from .methods import CompressedMethod, Method, read_config
from .names import plain_names
from .pattern_names import PatternName
from .reducers.base import Options
from .torch_internals import GradBucket, buckets_of, has_rebuilt_buckets, reduces_in_python
from .worker_state import WorkerState


def compress_gradients(
    model: Any,
    method: Method | Mapping[str, Any] | str,
    *,
    scaler: GradScaler | None = None,
    threads: int | None = None,
    pattern: PatternName | None = None,
    sites: Sequence[Sequence[int]] | None = None,
    downlink: Method | Mapping[str, Any] | str | None = None,
    key: bytes | None = None,
) -> "CompressionState":
    """Compresses what a DDP model synchronizes in its process group, from the next backward pass on.

    Args:
        model: a DistributedDataParallel model, or what holds one: compiled, or in a wrapper of Fabric's or
            Accelerate's.
        method: a method, its dictionary, or its line such as `wgt(density(0.01)) | golomb_rice`.
        scaler: of the loss. Gradients are divided by its scale before they are compressed, and multiplied
            afterwards, so that `unscale_`, clipping, `step` and `update` work as without a hook. Where one
            worker's gradient overflows, all find an infinity and skip the step, and residuals are what they
            were before it: a copy of them is kept from one step to the next.
        threads: number of CPU threads for a pass; by default as many as torch uses. No result depends on it.
        pattern: who sends what to whom. allgather: every message to all workers. hierarchical: likewise, over
            links between sites once per site, with the same result. sharded and parameter_server: to the
            workers that reduce a part each, or to worker 0, which send the compressed sum to all; ring: from
            worker to worker, compressed at each hop. docs/synchronization.md compares them. collective: as
            sharded, by torch's collectives, where the size of messages does not depend on gradients (every
            element in 1, 2, 4, 8 or 16 bits): they stay on the device. None takes it on GPUs with NCCL;
            otherwise allgather.
        sites: for hierarchical, the ranks of each site, such as [[0, 1], [2, 3]]; by default, the workers on
            one host form a site.
        downlink: for sharded and parameter_server, what sums are compressed with on their way to the workers,
            with a residual of their own; by default the method, without momentum.
        key: the same on all workers, 16 bytes or more. Messages are then encrypted, and connections without
            the key are refused (`exchange/keys.py`). By default, there is no key.

    Returns:
        The state: what was sent (`last_step`, `totals`), and what belongs into a checkpoint (`state_dict`).

    Raises:
        TypeError: there is no DDP model in it; the message says what was given instead.
        ValueError: the method is not valid, and a line names its fields that are wrong; or there are several
            DDP models, each of which needs a call of its own; or DDP expects a sparse gradient, or reduces in
            Python (`optimize_ddp`); or the method cannot take a parameter, or a scaler; or a pattern matches
            no parameter; or the number of threads is not a whole number of at least 1; or the exchange
            pattern is unknown, or does not go with the method; or the sites do not have each rank once, or
            are given for another pattern.
        RuntimeError: the model has a hook already, or its first backward pass has begun.
    """
    ddp = ddp_in(model)
    state = CompressionState(
        ddp, method, scaler=scaler, threads=threads, pattern=pattern, sites=sites, downlink=downlink, key=key
    )
    ddp.register_comm_hook(state, compression_hook)
    return state


def compression_hook(state: "CompressionState", bucket: GradBucket) -> Future[Tensor]:
    """Synchronizes one bucket: the hook itself, for those who make the state and register it in two lines.

    Returns:
        A future of the bucket's buffer, which holds the mean (or sum) of all workers' updates.

    Raises:
        NonFiniteGradient: through the future, on every worker, if a gradient holds NaN or Inf and the
            configuration does not say `nonfinite: skip`.
        CorruptMessage: through the future, where a message is damaged or does not fit the bucket.
        WorkersDisagree: in the first step, on every worker, where their methods, exchanges or models differ.
        CompressionError: on every worker, where the bucket is of another model than the state's, a gradient
            is sparse, or the method's momentum or decay would count twice in a step.
        PeerLost: on every worker, where one is gone, or has been silent for longer than the timeout of the
            process group allows.
    """
    return state.synchronize(bucket)


class CompressionState(WorkerState):
    """The state of compression on one worker of DDP; for attributes see also `WorkerState`.

    A state belongs to one DDP model, and synchronizes what that model reduces. A complex parameter counts as
    real numbers, two for each element.

    If several backward passes are exchanged before gradients are cleared, each of them exchanges what it has
    added, as in DDP without a hook; gradients must be equal on all workers between the passes. They belong
    to one step until an optimizer steps one of the parameters, or some gradients are cleared.

    Attributes:
        failure: the error that made a hook fail. DDP's `backward()` raises a RuntimeError that only quotes
            it.
        gradient_scale: a factor for gradients, applied before anything else; set it to the inverse of a
            loss's scale, such as 1 / GradScaler.get_scale().
    """

    _accumulating = "ddp.no_sync(), and no Join"

    def __init__(
        self,
        ddp: DistributedDataParallel,
        method: Method | Mapping[str, Any] | str,
        *,
        threads: int | None = None,
        pattern: PatternName | None = None,
        sites: Sequence[Sequence[int]] | None = None,
        downlink: Method | Mapping[str, Any] | str | None = None,
        key: bytes | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        """Prepares to compress what `ddp` synchronizes; for arguments and errors see `compress_gradients`."""
        ddp = ddp_in(ddp)
        method = _skipping(read_config(method), scaler)
        names = plain_names(ddp.module)
        named = {names[name]: parameter for name, parameter in ddp.module.named_parameters()}
        reduced = _reduced_by(ddp)
        self._names = {id(parameter): name for name, parameter in named.items() if id(parameter) in reduced}
        if method.brings_exchange:
            for name in self._names.values():
                if named[name].is_complex():
                    raise ValueError(
                        f"{method.kind} cannot take the complex parameter {name!r}: use another method"
                    )
        optimized = {name: named[name] for name in self._names.values()}
        known = {name: _real(parameter) for name, parameter in named.items()}
        super().__init__(
            method,
            ddp.process_group,
            Options(
                pattern,
                sites,
                downlink if downlink is None else read_config(downlink),
                key,
                threads,
                hold_back_zeros=bool(ddp.find_unused_parameters or ddp.static_graph),
            ),
            known=known,
            parameters={name: known[name] for name in self._names.values()},
            optimized=lambda: optimized,
        )
        # A sum needs no true gradients.
        self._scaler = scaler if isinstance(self.method, CompressedMethod) else None
        self._scale: float | None = None
        self._accumulated = AccumulatedGradients(optimized, self._fail)
        self._ddp, self._rebuilt = ref(ddp), has_rebuilt_buckets(ddp)
        self._by_strides = not ddp.gradient_as_bucket_view
        self._lay_out()
        self._ddp_options = {
            "find_unused_parameters": str(bool(ddp.find_unused_parameters)),
            "static_graph": str(bool(ddp.static_graph)),
            "a scaler": str(scaler is not None),
        }
        self._agreed: dict[tuple[int, ...], list[str]] = {}
        """The parameter names of buckets on which all workers agree, by index and the ids of the
        parameters."""
        self._left: set[int] = set()
        """Ids of the parameters that are still to be exchanged in the backward pass."""

    def __reduce__(self) -> tuple[type["StateCopy"], tuple[Method, dict[str, Any]]]:
        """Copies and pickles as a `StateCopy`: the way to other workers is no data."""
        return StateCopy, (self.method, self.state_dict())

    def synchronize(self, bucket: GradBucket) -> Future[Tensor]:
        """What the hook does; see `hook.compression_hook`."""
        parameters = bucket.parameters()
        ids = set(map(id, parameters))
        # In a static graph's first pass, each bucket has index 0, and none is the last.
        begins = not self._left >= ids
        if begins:
            self._begin()
        names = self._names_in(bucket.index(), parameters)
        self._left = (self._names.keys() if begins else self._left) - ids
        # What was exchanged before is not exchanged again; averaging identical values is a no-op.
        is_noop = self._reducer.averages and self.gradient_scale == 1
        orders = self.feedback.orders  # not those of `GradBucket.gradients`, which has all rows in a row
        copies = {} if is_noop else self._accumulated.copies(names)
        earlier = {name: orders[name].flat(_real(copy)) for name, copy in copies.items()}
        if earlier and not bucket.buffer().any():
            earlier = {}  # under Join, this rank has no data left: DDP gives it zeros
        sizes, is_last = [self._parameters[name].numel() for name in names], not self._left
        named = Bucket(
            bucket.index(), bucket.buffer(), names, sizes, is_awaited=is_last, earlier=earlier,
            scale=self._scale, ddp=bucket,
        )  # fmt: skip
        named.add_earlier(-1.0)  # DDP has filled the buffer with both
        summed = self._reduce(named, self.gradient_scale / (self._scale or 1.0))
        if is_last:
            self._end_pass()
            self._accumulated.end()
        known, strides = self._parameters, self._strides
        if self._by_strides and any(known[name].stride() != strides[name] for name in names):
            return summed.then(Once(lambda done: self._turned(done.value(), names)))
        return summed

    def _begin(self) -> None:
        """Begins a backward pass."""
        if self._scaler is not None and self._scaler.is_enabled():
            self._scale = self._scaler.get_scale()
        self._accumulated.begin()
        self._begin_pass(self._accumulated.names)
        self._follow_rebuilt_buckets()

    def _lay_out(self) -> None:
        orders = {name: MemoryOrder.of(parameter) for name, parameter in self._known.items()}
        sums, before = self.feedback.sums, self.feedback.orders
        for name in () if sums is None else sums.residuals:
            if before.get(name) != orders[name]:
                problem = f"the memory format of {name!r} changed after the first step: change it before, or "
                raise self._fail(CompressionError(f"{problem}use the pattern allgather"))
        self.feedback.reorder(orders)
        self._strides = {name: parameter.stride() for name, parameter in self._parameters.items()}

    def _turned(self, buffer: Tensor, names: Sequence[str]) -> Tensor:
        """A bucket's result, moved to where DDP reads it.

        DDP fills a bucket by the strides that parameters had when it made the bucket, and reads what a hook
        returns by those that they have now.
        """
        parameters = [self._parameters[name] for name in names]
        shares = torch.split(buffer, [parameter.numel() for parameter in parameters])
        for name, parameter, share in zip(names, parameters, shares, strict=True):
            if parameter.stride() != self._strides[name]:
                share.copy_(MemoryOrder.of(parameter).flat(self.feedback.orders[name].shaped(share)))
        return buffer

    def _follow_rebuilt_buckets(self) -> None:
        """After the first step, DDP makes its buckets anew, as parameters lie in memory then."""
        ddp = None if self._rebuilt else self._ddp()
        if ddp is not None and has_rebuilt_buckets(ddp):
            self._rebuilt = True
            self._lay_out()

    def _names_in(self, index: int, parameters: Sequence[Tensor]) -> list[str]:
        """Names of a bucket's parameters. For a new bucket, all workers first check that they agree on it.

        After the first step, DDP uses worker 0's layout of buckets on all workers. Workers that agreed on the
        first layout therefore meet the new one in the same step.
        """
        key = (index, *map(id, parameters))
        names = self._agreed.get(key)
        if names is None:
            if not self._names.keys() >= set(key[1:]):
                raise self._fail(
                    CompressionError(
                        "a bucket of another model: a state belongs to the DDP model that it was made for; "
                        "make a CompressionState for each"
                    )
                )
            names = [self._names[id(parameter)] for parameter in parameters]
            places = {f"bucket {index}, parameter {place}": name for place, name in enumerate(names)}
            self._check_agreement_and_connect({**self._ddp_options, **described(self._parameters), **places})
            self._agreed[key] = names
        return names


@dataclass(frozen=True)
class StateCopy:
    """What `deepcopy`, `pickle` and `torch.save` make of a state, also of that in a DDP model.

    It has residuals of its own, but no process group, and cannot train: torch registers no hook for the copy
    of a DDP model. A new state continues from it:

        state = compress_gradients(ddp, copied.method)
        state.load_state_dict(copied.state_dict())
    """

    method: Method
    kept: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """What `CompressionState.state_dict` returned."""
        return self.kept

    def synchronize(self, bucket: GradBucket) -> NoReturn:
        """Raises CompressionError."""
        raise CompressionError(
            "a copy of a CompressionState has no process group; make a state for the copied model, "
            "compress_gradients(ddp, copied.method), and load copied.state_dict() into it"
        )


def ddp_in(model: object) -> DistributedDataParallel:
    """The DDP model in what holds it: itself, `torch.compile`'s module, or a wrapper's.

    Raises:
        TypeError: there is none.
        ValueError: there are several, or it reduces in Python (`optimize_ddp`).
    """
    inner = model
    if isinstance(model, torch.nn.Module) and not isinstance(model, DistributedDataParallel):
        held = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        if len(held) > 1:
            raise ValueError(f"{type(model).__name__} holds {len(held)} DDP models: make a state for each")
        inner = held[0] if held else model
    if not isinstance(inner, DistributedDataParallel):
        raise TypeError(
            f"ddp is {'None' if model is None else f'of {type(model).__name__}'}: it must be, or hold, a "
            "model in torch.nn.parallel.DistributedDataParallel, as the hook is DDP's (not that of FSDP); "
            "where there is one process only, libraries wrap none"
        )
    if reduces_in_python(inner):
        raise ValueError(
            'torch._dynamo.config.optimize_ddp = "python_reducer" when the model was made: DDP then has no '
            "buckets for the hook; leave it at its default"
        )
    return inner


def _skipping(method: Method, scaler: GradScaler | None) -> Method:
    """The method as a scaler needs it: an overflow is no error, but a step that all skip."""
    if scaler is None:
        return method
    if method.brings_exchange:
        raise ValueError(
            f"{method.kind} with a scaler: an overflow would stay in its memory; use another method"
        )
    return method.model_copy(update={"nonfinite": "skip"})


def _reduced_by(ddp: DistributedDataParallel) -> set[int]:
    """Ids of the parameters that DDP reduces: neither ignored nor frozen when it was made."""
    try:
        buckets = buckets_of(ddp)
    except RuntimeError:  # there are none like those of sparse gradients
        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        modules = ddp.module.named_modules()
        sparse = [f"{name}.weight" for name, module in modules if isinstance(module, kinds) and module.sparse]
        raise ValueError(
            f"DDP expects a sparse gradient of {', '.join(sparse) or 'a parameter'}: the hook takes only "
            "dense ones; make the embedding with sparse=False"
        ) from None
    return {id(parameter) for bucket in buckets for parameter in bucket.parameters()}


def _real(parameter: Tensor) -> Tensor:
    """The same memory as real numbers, as DDP's buckets have it."""
    return torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter
