"""powersgd: torch's own PowerSGD hook (Vogels, Karimireddy, Jaggi 2019, arXiv:1905.13727).

A gradient matrix M [rows, columns] is sent as P [rows, rank] and Q [columns, rank], and what P Q^T misses is
kept for the next step (algorithms 1 and 2). The algorithm is torch's; what this file adds is around it:

- torch keeps its memory by the index of a bucket. DDP lays its buckets out anew after the first backward
  pass of every process, so that a resumed run would add one parameter's error to another's gradient. Here
  memory is kept by a parameter's name, and lies in torch's dictionaries only while a bucket is on its way.
- torch draws the first Q of a bucket from one generator for all, so that the numbers depend on the
  layout. Here they depend on seed, iteration and the parameter's name. P needs no memory: torch
  overwrites it before it is read.
- torch starts the second and third all-reduce of a bucket in callbacks, which gloo runs on threads of its
  own: with several buckets workers start them in different orders, and gloo aborts the process. Here a
  bucket is finished before the next one begins, except where callbacks run in order, as NCCL's do.
- A matrix of zeros gives torch 0/0, and its Q of zeros would stay zeros; see `_EPSILON` and `_fit`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ..lazy import np, torch
from ..names import fitting
from ..ops.array import Tensor
from .base import BucketSum, Method

if TYPE_CHECKING:
    from ..torch_internals import GradBucket


class PowerSGD(Method):
    """torch's own PowerSGD hook (Vogels et al. 2019): low-rank factors instead of matrices."""

    brings_exchange = True
    first_field: ClassVar[str] = "rank"

    kind: Literal["powersgd"] = "powersgd"
    rank: int = Field(default=1, ge=1)
    """Rank of the factors."""
    start: int = Field(default=10, ge=2)
    """Iterations of plain all-reduce before the first compressed one."""
    min_rate: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """A matrix is compressed only if this makes it smaller by at least this factor."""
    warm_start: bool = True
    """Start each approximation from the previous one."""
    feedback: bool = True
    """Error feedback: add what an approximation missed to the next iteration's gradient."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the first random factors."""
    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse"] = "refuse"
    """A NaN or Inf in a gradient raises an error: it would stay in the hook's memory for ever."""

    def exchange(
        self,
        group: torch.distributed.ProcessGroup,
        parameters: Mapping[str, Tensor],
        known: Mapping[str, Tensor],
    ) -> Factors:
        return Factors(self, group, parameters, known)


_STATE_VERSION = 1
_COUNTS = ("iteration", "elements_before", "elements_after")

_EPSILON = 1e-19
"""Added to the norm of a column before dividing by it. Too small to change a bit of a float32 norm above
1e-11; and where squares underflow and the norm is 0, elements (below 1e-19 then) are not blown up."""


@dataclass(frozen=True)
class _Matrix:
    """A parameter that torch compresses."""

    name: str
    rows: int
    columns: int
    rank: int


class Factors:
    """Factors of gradient matrices, summed by torch; and what PowerSGD keeps from step to step."""

    def __init__(
        self,
        method: PowerSGD,
        group: torch.distributed.ProcessGroup,
        parameters: Mapping[str, Tensor],
        known: Mapping[str, Tensor],
    ) -> None:
        """Prepares to synchronize `parameters`; the same on every worker.

        What a state has of other known parameters is kept without use.

        Raises:
            ValueError: a parameter that torch's hook fails on: a scalar, one without elements, one whose
                memory is not contiguous, or one in the CPU's memory where torch finds a GPU.
        """
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415

        if powerSGD_hook.logger.level == logging.NOTSET:  # it would report every allocation
            powerSGD_hook.logger.setLevel(logging.WARNING)
        self._hook = powerSGD_hook.powerSGD_hook
        # For torch every start is warm: without warm_start, `_fit` puts random Qs in place.
        self._torchs = powerSGD_hook.PowerSGDState(
            group,
            matrix_approximation_rank=method.rank,
            start_powerSGD_iter=method.start,
            min_compression_rate=method.min_rate,
            use_error_feedback=method.feedback,
            warm_start=True,
        )
        self._warm_start, self._seed = method.warm_start, method.seed
        self._parameters = dict(parameters)
        self._known = {**known, **parameters}
        for name, parameter in self._parameters.items():
            _refuse_what_torch_fails_on(name, parameter)
        self._matrices = {
            matrix.name: matrix
            for name, parameter in self._known.items()
            if (matrix := _compressed(name, parameter, method.rank, method.min_rate))
        }
        self._errors: dict[str, Tensor] = {}
        """By parameter, [numel]."""
        self._qs: dict[str, Tensor] = {}
        """By compressed parameter, [columns, rank]; nothing without warm_start."""

    def start(
        self, bucket: GradBucket, names: Sequence[str], sizes: Sequence[int], *, calls_in_order: bool
    ) -> BucketSum:
        """See `BucketExchange.start`."""
        sent, index = dict(zip(names, sizes, strict=True)), bucket.index()
        compresses = self._torchs.iter >= self._torchs.start_powerSGD_iter
        if compresses:
            self._fit(index, bucket.buffer(), names, sizes)
            for matrix in self._in_torchs_order(names):
                sent[matrix.name] = (matrix.rows + matrix.columns) * matrix.rank
        averaged = self._hook(self._torchs, bucket)
        under_way = perf_counter()  # what torch computes between all-reduces is not told apart from waiting
        if compresses and calls_in_order:
            averaged = averaged.then(lambda done: self._take_apart(index, names, sizes, done.value()))
        elif compresses:
            self._take_apart(index, names, sizes, averaged.wait())
        return BucketSum(averaged, sent, under_way)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to continue elsewhere: plain numbers and tensors, for `torch.save`.

        Call it between steps. The tensors are the live ones, not copies. With two workers, or where DDP never
        lays its buckets out anew (`find_unused_parameters`), a run that goes on from them is bit-identical.
        Elsewhere gloo's order of adding depends on an element's place in its bucket, so that the first step
        in a new process may round otherwise; so it does without compression.

        Returns:
            "version"; "iteration"; "errors", by parameter [numel]; "qs", by compressed parameter
            [columns, rank]; "elements_before" and "elements_after" compression, of this worker so far.
        """
        return {
            "version": _STATE_VERSION,
            "iteration": self._torchs.iter,
            "elements_before": self._torchs.total_numel_before_compression,
            "elements_after": self._torchs.total_numel_after_compression,
            "errors": dict(self._errors),
            "qs": dict(self._qs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned.

        Raises:
            ValueError: another version, a part missing, or an error or Q that has no place here or another
                shape or dtype. Nothing is taken over then.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"version {state.get('version')!r} of a PowerSGD state; this program reads {_STATE_VERSION}"
            )
        missing = {*_COUNTS, "errors", "qs"} - set(state)
        if missing:
            raise ValueError(f"a PowerSGD state without {' and '.join(sorted(missing))}")
        for name in _COUNTS:
            if type(state[name]) is not int or state[name] < 0:
                raise ValueError(f"{name} {state[name]!r} in a PowerSGD state; it must be a count")
        scalars = {name: parameter.new_empty(()) for name, parameter in self._known.items()}
        like_errors: dict[str, Tensor] = {}
        like_qs: dict[str, Tensor] = {}
        if self._torchs.use_error_feedback:
            sizes = {name: parameter.numel() for name, parameter in self._known.items()}
            like_errors = {name: scalars[name].expand(size) for name, size in sizes.items()}
        if self._warm_start:
            matrices = self._matrices.items()
            like_qs = {name: scalars[name].expand(matrix.columns, matrix.rank) for name, matrix in matrices}
        errors = fitting(state["errors"], like_errors, "PowerSGD error")
        qs = fitting(state["qs"], like_qs, "PowerSGD Q")
        self._errors, self._qs = errors, qs
        self._torchs.iter = state["iteration"]
        self._torchs.total_numel_before_compression = state["elements_before"]
        self._torchs.total_numel_after_compression = state["elements_after"]

    def _fit(self, index: int, like: Tensor, names: Sequence[str], sizes: Sequence[int]) -> None:
        """Puts the memory of a bucket's parameters together, where torch looks for it."""
        for name in names:  # its memory's order may be another since the state was made
            _refuse_what_torch_fails_on(name, self._parameters[name])
        self._torchs.orthogonalization_epsilon = max(_EPSILON, torch.finfo(like.dtype).tiny)
        if self._torchs.use_error_feedback:
            zeros = torch.zeros_like(like)
            places = zip(names, torch.split(zeros, list(sizes)), strict=True)
            self._torchs.error_dict[index] = torch.cat([self._errors.get(*place) for place in places])
        matrices = self._in_torchs_order(names)
        self._torchs.p_memory_dict[index] = like.new_empty(
            sum(matrix.rows * matrix.rank for matrix in matrices)
        )
        memory = like.new_empty(sum(matrix.columns * matrix.rank for matrix in matrices))
        for matrix, q in zip(matrices, _qs_in(memory, matrices), strict=True):
            known = self._qs.get(matrix.name)
            q.copy_(self._random_q(matrix) if known is None else known)
        if not bool(memory.all()):  # gradients of zeros, or of a lower rank, leave columns of zeros
            for matrix, q in zip(matrices, _qs_in(memory, matrices), strict=True):
                q.copy_(torch.where(q.any(dim=0), q, self._random_q(matrix).to(q)))
        self._torchs.q_memory_dict[index] = memory

    def _take_apart(self, index: int, names: Sequence[str], sizes: Sequence[int], mean: Tensor) -> Tensor:
        """Gives each parameter its part of a bucket's memory, once the mean is there; returns that."""
        matrices = self._in_torchs_order(names)
        memory = self._torchs.q_memory_dict.pop(index)
        del self._torchs.p_memory_dict[index]
        if self._torchs.use_error_feedback:
            errors = torch.split(self._torchs.error_dict.pop(index), list(sizes))
            self._errors.update(zip(names, errors, strict=True))
        if self._warm_start:
            self._qs.update(
                (matrix.name, q) for matrix, q in zip(matrices, _qs_in(memory, matrices), strict=True)
            )
        return mean

    def _random_q(self, matrix: _Matrix) -> Tensor:
        """Standard normal numbers, float32 [columns, rank]; the same on every worker."""
        rng = np.random.default_rng([self._seed, self._torchs.iter, *matrix.name.encode()])
        return torch.from_numpy(rng.standard_normal((matrix.columns, matrix.rank), dtype=np.float32))

    def _in_torchs_order(self, names: Iterable[str]) -> list[_Matrix]:
        """A bucket's matrices as torch lays their Ps and Qs out: those of the same shape side by side."""
        by_shape: defaultdict[tuple[int, int], list[_Matrix]] = defaultdict(list)
        for name in names:
            if matrix := self._matrices.get(name):
                by_shape[matrix.rows, matrix.columns].append(matrix)
        return [matrix for alike in by_shape.values() for matrix in alike]


def _qs_in(memory: Tensor, matrices: list[_Matrix]) -> list[Tensor]:
    """Views [columns, rank] of a bucket's Qs."""
    parts = torch.split(memory, [matrix.columns * matrix.rank for matrix in matrices])
    return [part.view(matrix.columns, matrix.rank) for matrix, part in zip(matrices, parts, strict=True)]


def _compressed(name: str, parameter: Tensor, rank: int, min_compression_rate: float) -> _Matrix | None:
    """The parameter as torch's hook sees it; None where it sends it whole, or fails on it."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs  # noqa: PLC0415

    if not _torch_takes(parameter):
        return None
    rows, columns = parameter.view(parameter.shape[0], -1).shape
    rank = min(rows, columns, rank)
    worthwhile, _, _ = torchs._should_compress(rows, columns, rank, min_compression_rate)  # type: ignore[no-untyped-call]
    return _Matrix(name, rows, columns, rank) if worthwhile else None


def _torch_takes(parameter: Tensor) -> bool:
    return parameter.dim() > 0 and parameter.numel() > 0 and parameter.is_contiguous()


def _refuse_what_torch_fails_on(name: str, parameter: Tensor) -> None:
    """Says at once what torch would only say after `start` iterations."""
    if not _torch_takes(parameter):
        raise ValueError(
            f"torch's PowerSGD cannot take the parameter {name!r} of shape {tuple(parameter.shape)} and "
            f"strides {parameter.stride()}: it needs a first dimension, elements, and contiguous memory"
        )
    if parameter.device.type == "cpu" and torch.cuda.is_available():
        raise ValueError(
            f"torch's PowerSGD cannot take the parameter {name!r}, which is in the CPU's memory, while torch "
            "finds a GPU; hide it with CUDA_VISIBLE_DEVICES="
        )
