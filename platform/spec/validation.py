"""Which modes, methods and trainings do not go together: the one table of refusals.

It is asked when a spec is read, before anything starts, and needs no torch. Each function below says what
cannot be with one kind of mode, one sentence after the other: the fields, their values, and what would do.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from taugrad.compressors.exchange.sites import check_site_ranks
from taugrad.compressors.local_fields import local_refusals
from taugrad.compressors.methods import Method, NoCompression
from taugrad.compressors.pattern_names import pattern_refusals

from .synchronization import (
    AsyncSync,
    GradientsSync,
    HybridSync,
    RealSync,
    SyncConfig,
    WeightsSync,
    real,
)
from .training import Lamb, Lars, Muon, Sgd, Stages, TrainingConfig


@dataclass(frozen=True)
class Asked:
    """What is to be done, as far as its mode has to do with it."""

    sync: SyncConfig
    method: Method
    """What gradients or weights are compressed with."""
    training: TrainingConfig
    workers: int

    @property
    def mode(self) -> RealSync:
        """The mode itself, or what is simulated."""
        return real(self.sync)

    @property
    def where(self) -> str:
        """Where the mode's fields are in a spec."""
        return "sync.of" if self.sync.is_simulated else "sync"

    @property
    def momentum(self) -> float:
        """Momentum of the workers' optimizer."""
        return float(getattr(self.training.optimizer, "momentum", 0.0))


def check_sync(asked: Asked) -> None:
    """Refuses what cannot be, with a ValueError that names the fields, their values and what would do."""
    others = (_hybrid, _async, _quorum, _sites, _islands, _authenticated, _stages)
    for problems in (*_METHODS, *others):
        for problem in problems(asked):
            raise ValueError(problem)


def check_method(sync: SyncConfig, method: Method) -> None:
    """Refuses a method that cannot work in a mode, whatever the training; see `check_sync`."""
    plain = TrainingConfig(optimizer=Sgd(momentum=0.0))
    for problems in _METHODS:
        for problem in problems(Asked(sync, method, plain, 1)):
            raise ValueError(problem)


def needed_of(quorum: float, workers: int) -> int:
    """How many workers close a round: always more than half of all."""
    # A share such as 0.6 of 5 is a hair above 3 in floating point.
    return max(workers // 2 + 1, math.ceil(quorum * workers - 1e-9))


def why_no_islands(island: object, sizes: Sequence[int]) -> str | None:
    """Why `sync.island` cannot make islands of these numbers of workers; None if it can."""
    if len(sizes) > 1 and min(sizes) == max(sizes) > 1:
        return None
    return (
        f"sync.island = {island}: islands have {', '.join(map(str, sizes))} of {sum(sizes)} workers; there "
        "must be two or more, of equally many workers, two or more each"
    )


Problems = Callable[[Asked], Iterator[str]]


def _patterns(asked: Asked) -> Iterator[str]:
    mode, method = asked.mode, asked.method
    by_hook = isinstance(mode, GradientsSync) and not asked.sync.is_simulated
    if method.brings_exchange and not (by_hook and mode.pattern_name == "allgather"):
        given = f"pattern = {mode.pattern_name}" if by_hook else f"mode = {asked.sync.mode}"
        yield (
            f"compressor.kind = {method.kind} with sync.{given}: its factors go through torch's own "
            "all-reduce; use sync: {mode: gradients, pattern: allgather}"
        )
    if isinstance(mode, WeightsSync):
        yield from local_refusals(
            mode,
            mode.every,
            mode.fragments,
            method,
            mode.downlink,
            name="compressor",
            prefix=f"{asked.where}.",
        )
    else:
        downlink: Method | None = getattr(mode, "downlink", None)
        yield from pattern_refusals(mode.pattern_name, method, downlink, "compressor", f"{asked.where}.")
    if isinstance(mode, GradientsSync) and mode.pattern == "collective" and asked.sync.is_simulated:
        yield (
            "sync.of.pattern = collective with sync.mode = simulated: no collective can be counted there; "
            "use sync.of.pattern: sharded, which defines its bits"
        )


def _momentum(asked: Asked) -> Iterator[str]:
    momentum = asked.method.momentum_correction
    if momentum and asked.momentum and not asked.mode.is_local:
        yield (
            f"compressor.momentum = {momentum}: the optimizer has momentum too, it would be applied twice; "
            "add training.optimizer.momentum: 0"
        )


_METHODS: tuple[Problems, ...] = (_patterns, _momentum)
"""What a method cannot do in a mode."""


def _hybrid(asked: Asked) -> Iterator[str]:
    mode, where, training = asked.mode, asked.where, asked.training
    if not isinstance(mode, HybridSync):
        return
    hybrid = f"with {where}.mode = hybrid"
    if mode.fc_batch == "per_worker" and mode.scheme == "a":
        yield (
            f"{where}.fc_batch = per_worker with {where}.scheme = a: scheme a has all workers' examples at "
            "once; use b or c, or joined"
        )
    if mode.fc_batch == "per_worker" and asked.method.nonfinite == "skip":
        yield (
            f"compressor.nonfinite = skip with {where}.fc_batch = per_worker: a step of the fully connected "
            "layers cannot be taken back; use refuse, or joined"
        )
    if isinstance(training.optimizer, Lars | Lamb | Muon):
        yield (
            f"training.optimizer.kind = {training.optimizer.kind} {hybrid}: it needs whole layers, of "
            "which a worker has a part; use sgd, adam or adamw"
        )
    if training.clip.norm:
        yield (
            f"training.clip.norm = {training.clip.norm:g} {hybrid}: no worker has the whole gradient; use 0"
        )
    if training.precision == "fp16":
        yield (
            f"training.precision = fp16 {hybrid}: gradients of activations are exchanged without the loss's "
            "scale; use fp32 or bf16"
        )
    if training.accumulate > 1:
        yield (
            f"training.accumulate = {training.accumulate} {hybrid}: turns cut the batch already; use 1, "
            f"and {where}.scheme = b or c"
        )
    if training.compile:
        yield f"training.compile = true {hybrid}: the model is run in two parts; use false"
    if training.find_unused_parameters:
        yield f"training.find_unused_parameters = true {hybrid}: every layer is used in each step; use false"


def _async(asked: Asked) -> Iterator[str]:
    mode, where, training = asked.mode, asked.where, asked.training
    if not isinstance(mode, AsyncSync):
        return
    asynchronous = f"with {where}.mode = async"
    optimizer = training.optimizer
    if not isinstance(optimizer, Sgd):
        yield (
            f"training.optimizer.kind = {optimizer.kind} {asynchronous}: workers apply every update as it "
            "comes, and their sums must not depend on the order; use sgd with momentum: 0"
        )
    if asked.momentum:
        yield (
            f"training.optimizer.momentum = {asked.momentum:g} {asynchronous}: momentum would depend on "
            "the order in which updates come; use 0, and compressor.momentum for each worker's own"
        )
    if training.clip.norm and training.clip.of == "mean":
        yield f"training.clip.of = mean {asynchronous}: no worker has the mean of the gradients; use worker"
    if training.precision == "fp16":
        yield (
            f"training.precision = fp16 {asynchronous}: workers would have to agree on the loss's scale; use "
            "fp32 or bf16"
        )
    if mode.step_times and len(mode.step_times) != asked.workers:
        yield (
            f"{where}.step_times = {list(mode.step_times)}: there must be one for each worker, and "
            f"workers.count = {asked.workers}"
        )
    if mode.delay[0] > mode.delay[1]:
        yield f"{where}.delay = {list(mode.delay)}: the lower bound comes first, then the upper one"
    if not asked.sync.is_simulated and not mode.follow_schedule:
        for field in ("step_times", "delay", "schedule_seed"):
            if getattr(mode, field) != AsyncSync.model_fields[field].default:
                yield (
                    f"sync.{field} without a schedule: real workers run at their own speed; add "
                    "sync.follow_schedule: true, or simulate the mode"
                )


def _quorum(asked: Asked) -> Iterator[str]:
    mode, where, simulated = asked.mode, asked.where, asked.sync.is_simulated
    if not isinstance(mode, WeightsSync):
        return
    if mode.quorum is None:
        for field in ("deadline", "schedule"):
            if getattr(mode, field) is not None:
                yield f"{where}.{field} without {where}.quorum: every round waits for all; add one"
        return
    quorum = f"{where}.quorum = {mode.quorum:g} with"
    if not mode.every:
        yield f"{quorum} {where}.every = 0: give the steps of a round, such as 16"
    if mode.exchange == "weights":
        yield (
            f"{quorum} {where}.exchange = weights: what a late worker has learnt could not wait for its next "
            f"round; use {where}.exchange: pseudo_gradients"
        )
    if mode.pattern != "allgather":
        yield (
            f"{quorum} {where}.pattern = {mode.pattern}: a worker that sums for others cannot be "
            f"left out; use {where}.pattern: allgather"
        )
    if mode.fragments > 1 or mode.delay_steps:
        yield f"{quorum} {where}.fragments or delay_steps: a round is about the whole model; leave them out"
    if mode.deadline is not None and simulated:
        yield (
            f"{quorum} {where}.deadline and sync.mode = simulated: simulated workers take no time; say in "
            f"{where}.schedule who is late"
        )
    if mode.schedule is not None and mode.deadline is not None:
        yield f"{where}.deadline with {where}.schedule: workers do what the schedule says; leave one out"


def _sites(asked: Asked) -> Iterator[str]:
    mode, where = asked.mode, asked.where
    if not isinstance(mode, GradientsSync | WeightsSync):
        return
    field, value = f"{where}.pattern", mode.pattern
    if mode.sites is not None and value != "hierarchical" and getattr(mode, "island", None) != "host":
        yield (f"{where}.sites with {field} = {value}: they need {field}: hierarchical; leave them out")
    if mode.sites is not None:
        try:
            check_site_ranks(mode.sites, asked.workers)
        except ValueError as reason:
            yield f"{where}.{reason}"
    elif value == "hierarchical" and asked.sync.is_simulated:
        yield (
            f"{field} = hierarchical without {where}.sites: simulated workers are not on nodes; give the "
            "ranks of each site, such as [[0, 1], [2, 3]]"
        )


def _islands(asked: Asked) -> Iterator[str]:
    mode, training, workers = asked.mode, asked.training, asked.workers
    if not isinstance(mode, GradientsSync):
        return
    if mode.island is None:
        if mode.island_reduce != "fp32":
            yield f"{asked.where}.island_reduce = {mode.island_reduce}: needs {asked.where}.island"
        return
    sizes = [len(site) for site in mode.sites or ()]
    if isinstance(mode.island, int):
        sizes = [min(mode.island, workers - first) for first in range(0, workers, mode.island)]
    if sizes and (reason := why_no_islands(mode.island, sizes)):
        yield reason
    clips_own = training.clip.norm and training.clip.of == "worker"
    kind, norms = training.optimizer.kind, "it needs whole layers; use sgd, adam or adamw"
    for cannot, what, why in (
        (asked.sync.is_simulated, "sync.mode = simulated", "FSDP2 needs real workers; leave it out"),
        (
            mode.pattern != "allgather",
            f"sync.pattern = {mode.pattern}",
            "islands are the sites; use allgather",
        ),
        (
            asked.method.brings_exchange,
            f"compressor.kind = {asked.method.kind}",
            "its memory is DDP's; use another",
        ),
        (training.compile, "training.compile = true", "it cannot be sharded then; use false"),
        (isinstance(training.optimizer, Lars | Lamb | Muon), f"training.optimizer.kind = {kind}", norms),
        (clips_own, "training.clip.of = worker", "no worker has its own gradient; use mean"),
    ):
        if cannot:
            yield f"{asked.where}.island = {mode.island} with {what}: {why}"


def _authenticated(asked: Asked) -> Iterator[str]:
    if not asked.mode.authenticated:
        return
    if asked.sync.is_simulated:
        yield (
            "sync.of.authenticated = true with sync.mode = simulated: a simulation sends nothing; "
            "leave it out"
        )
    mode, method = asked.mode, asked.method
    if not isinstance(mode, GradientsSync):
        return
    by_torch = mode.gathers_buckets and isinstance(method, NoCompression)
    if by_torch or method.brings_exchange:
        yield (
            f"sync.authenticated = true with compressor.kind = {method.kind}: it goes through torch's "
            "own all-reduce, without messages of ours; use another compressor, or sync.pattern: sharded"
        )
    if mode.pattern == "collective":
        yield (
            "sync.authenticated = true with sync.pattern = collective: torch's collectives do not encrypt; "
            "use sync.pattern: sharded"
        )


def _stages(asked: Asked) -> Iterator[str]:
    growth = asked.training.batch_growth
    for number, stage in enumerate(growth.stages if isinstance(growth, Stages) else ()):
        field = f"training.batch_growth.stages[{number}].workers = {stage.workers}"
        if stage.workers is not None and stage.workers > asked.workers:
            yield f"{field}: workers.count is {asked.workers}; give at most this number, or leave it out"
        if stage.workers is not None and asked.mode.exchanges in ("weights", "activations"):
            yield (
                f"{field} with sync.mode = {asked.mode.mode}: every worker trains in each step; leave it out"
            )
