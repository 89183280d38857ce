"""Which methods cannot work in which mode; checked when a spec is read, before anything starts."""

from taugrad.compressors.exchange.site_ranks import check_site_ranks
from taugrad.compressors.method import Method, PowerSGD
from taugrad.compressors.method.dense import DenseMethod
from taugrad.compressors.method.methods import NoCompression
from taugrad.compressors.method.policies import Law

from ..training.config import BatchGrowthConfig, Stages
from .config import (
    AllGatherSync,
    HybridSync,
    OuterOptimizer,
    RealSync,
    RingSync,
    SimulatedSync,
    SiteRanks,
    SyncConfig,
    WeightsSync,
    real,
)


def check_sync(sync: SyncConfig, method: Method, optimizer_momentum: float) -> None:
    """Refuses a mode that is not possible, or in which the method cannot work.

    Args:
        sync: the mode.
        method: what gradients or weights are compressed with.
        optimizer_momentum: of the workers' optimizer.

    Raises:
        ValueError: it names the fields, their values and what would do.
    """
    mode = real(sync)
    where = "sync.of" if isinstance(sync, SimulatedSync) else "sync"
    if isinstance(method, PowerSGD) and sync.mode != "allgather":
        raise ValueError(
            f"compressor.kind = powersgd with sync.mode = {sync.mode}: its factors go through torch's own "
            "all-reduce; use sync.mode: allgather"
        )
    if isinstance(mode, WeightsSync):
        _check_weights(mode, where, method)
    else:
        _check_momentum(mode, where, method, optimizer_momentum)
    back = getattr(mode, "back", None)
    if back is not None:
        _check_back(mode, where, back)
    for field, each in (("compressor", method), (f"{where}.back", back)):
        _check_law(mode, where, field, each)


def check_exchange(sync: SyncConfig, workers: int) -> None:
    """Refuses sites that are not possible.

    Args:
        sync: the mode.
        workers: how many there are.

    Raises:
        ValueError: it names the fields, their values and what would do.
    """
    mode = real(sync)
    where = "sync.of" if isinstance(sync, SimulatedSync) else "sync"
    if isinstance(mode, WeightsSync):
        _check_sites(sync, f"{where}.pattern", mode.pattern, mode.sites, workers)
    if isinstance(mode, AllGatherSync):
        _check_sites(sync, f"{where}.exchange", mode.exchange, mode.sites, workers)


def _check_sites(sync: SyncConfig, field: str, value: str, sites: SiteRanks | None, workers: int) -> None:
    where = field.rpartition(".")[0]
    if sites is not None and value != "hierarchical":
        raise ValueError(
            f"{where}.sites with {field} = {value}: they need {field}: hierarchical; leave them out"
        )
    if sites is not None:
        try:
            check_site_ranks(sites, workers)
        except ValueError as reason:
            raise ValueError(f"{where}.{reason}") from None
    elif value == "hierarchical" and isinstance(sync, SimulatedSync):
        raise ValueError(
            f"{field} = hierarchical without {where}.sites: simulated workers are not on nodes; give the "
            "ranks of each site, such as [[0, 1], [2, 3]]"
        )


def check_stages(sync: SyncConfig, growth: BatchGrowthConfig, workers: int) -> None:
    """Refuses stages with a number of workers that is not possible.

    Args:
        sync: the mode.
        growth: how batches grow.
        workers: how many there are.

    Raises:
        ValueError: it names the field, its value and what would do.
    """
    mode = real(sync)
    for number, stage in enumerate(growth.stages if isinstance(growth, Stages) else ()):
        field = f"training.batch_growth.stages[{number}].workers = {stage.workers}"
        if stage.workers is not None and stage.workers > workers:
            raise ValueError(
                f"{field}: workers.count is {workers}; give at most this number, or leave it out"
            )
        if stage.workers is not None and isinstance(mode, WeightsSync | HybridSync):
            raise ValueError(
                f"{field} with sync.mode = {mode.mode}: every worker trains in each step; leave it out"
            )


def _check_momentum(mode: RealSync, where: str, method: Method, optimizer_momentum: float) -> None:
    own = method.own_momentum
    if own and optimizer_momentum:
        raise ValueError(
            f"compressor.momentum = {own}: the optimizer has momentum too, it would be applied twice; "
            "add training.optimizer.momentum: 0"
        )
    if own and isinstance(mode, RingSync):
        raise ValueError(
            f"compressor.momentum = {own} with {where}.mode = ring: a hop also compresses other workers' "
            "gradients; use compressor.momentum: 0, or another mode"
        )


def _check_weights(mode: WeightsSync, where: str, method: Method) -> None:
    if method.nonfinite == "skip":
        raise ValueError(
            f"compressor.nonfinite = skip with {where}.mode = weights: weights that are not finite cannot be "
            "left out; use refuse"
        )
    if mode.outer.nesterov and not mode.outer.momentum:
        raise ValueError(f"{where}.outer.nesterov: needs {where}.outer.momentum above 0")
    own = method.own_momentum
    if own and (mode.outer.momentum or mode.pattern == "ring"):
        raise ValueError(
            f"compressor.momentum = {own} with {where}.mode = weights: it works neither with a ring nor with "
            f"{where}.outer.momentum, where it would be applied twice; use compressor.momentum: 0"
        )
    if mode.unsent and mode.pattern == "ring":
        raise ValueError(
            f"{where}.unsent = {mode.unsent:g} with {where}.pattern = ring: what a hop leaves out also "
            f"belongs to other workers; use {where}.unsent: 0, or another pattern"
        )
    if mode.exchange == "difference":
        return
    if mode.unsent:
        raise ValueError(
            f"{where}.unsent = {mode.unsent:g} with {where}.exchange = weights: nothing is left for later; "
            f"use {where}.exchange: difference"
        )
    if not isinstance(method, DenseMethod | NoCompression):
        raise ValueError(
            f"compressor.kind = {method.kind} with {where}.exchange = weights: weights that are not sent "
            "would count as 0; use a method that sends every element, such as linear or entropy, or "
            f"{where}.exchange: difference"
        )
    if method.reduction == "sum":
        raise ValueError(f"compressor.reduction = sum with {where}.exchange = weights: use mean")
    if mode.outer != OuterOptimizer():
        raise ValueError(
            f"{where}.outer with {where}.exchange = weights: it needs {where}.exchange: difference"
        )


def _check_law(mode: RealSync, where: str, field: str, method: Method | None) -> None:
    """A law needs the loss's gradients."""
    for name in ("tau", "floor"):
        if isinstance(getattr(method, name, None), Law) and isinstance(mode, WeightsSync):
            raise ValueError(
                f"{field}.{name} = law with {where}.mode = weights: a law needs gradients, but weights or "
                "their differences are exchanged here; give a number or another policy"
            )


def _check_back(mode: RealSync, where: str, back: Method) -> None:
    pattern = mode.pattern if isinstance(mode, WeightsSync) else mode.mode
    if pattern not in ("parameter_server", "sharded", "hybrid"):
        raise ValueError(
            f"{where}.back with {pattern}: only parameter_server, sharded and hybrid send sums back"
        )
    if isinstance(back, PowerSGD):
        raise ValueError(f"{where}.back.kind = powersgd: its factors go through torch's own all-reduce")
    if back.own_momentum:
        raise ValueError(f"{where}.back.momentum = {back.own_momentum}: the sum already contains momentum")
    whole = isinstance(mode, WeightsSync) and mode.exchange == "weights"
    if whole and not isinstance(back, DenseMethod | NoCompression):
        raise ValueError(
            f"{where}.back.kind = {back.kind}: weights need a method that sends every element, such as linear"
        )


def check_authenticated(sync: SyncConfig, method: Method) -> None:
    """Refuses authentication if messages are not ours.

    Args:
        sync: the mode.
        method: what gradients or weights are compressed with.

    Raises:
        ValueError: it names the fields, their values and what would do.
    """
    mode = real(sync)
    if not mode.authenticated:
        return
    if isinstance(sync, SimulatedSync):
        raise ValueError(
            "sync.of.authenticated = true with sync.mode = simulated: a simulation sends nothing; "
            "leave it out"
        )
    if isinstance(mode, AllGatherSync) and isinstance(method, NoCompression | PowerSGD):
        raise ValueError(
            f"sync.authenticated = true with compressor.kind = {method.kind}: it goes through torch's own "
            "all-reduce, without messages of ours; use another compressor, or sync.mode: sharded"
        )
