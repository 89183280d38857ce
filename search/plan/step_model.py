"""Seconds of a training step: computing, and the part of the exchange that does not overlap with it.

In the mode allgather, buckets become ready during the backward pass, and the link sends them in this order
while the rest is computed. With islands, their weights are gathered before both passes, and they are reduced
inside the island before. In all other modes, the exchange starts after the backward pass.

A worker has one processor for everything: compressing delays the rest of its backward pass, and messages are
read after the backward pass.
"""

from dataclasses import dataclass

from taugrad.platform.spec.synchronization import RealSync

from . import exchange_model as model
from .calibrated import Calibration, MethodWork
from .exchange_model import NOTHING, Exchange
from .link import Link


class CannotPlan(ValueError):
    """The way to train is not modelled; the message names the field."""


_FLOAT = 4


@dataclass(frozen=True)
class StepTime:
    """One step of training.

    Attributes:
        seconds: from its start to the start of the next one; mean of the steps between two exchanges.
        compute_s: the part for forward pass, backward pass and optimizer.
        exchange_s: how long the network is used or waited for; this can overlap with computing.
        received: bytes that arrive at a worker in a step, mean of the workers.
    """

    seconds: float
    compute_s: float
    exchange_s: float
    received: float

    @property
    def utilization(self) -> float:
        """The share of the time in which the model is computed, 0 to 1."""
        return self.compute_s / self.seconds


def step_time(
    calibration: Calibration, work: MethodWork, sync: RealSync, link: Link, workers: int
) -> StepTime:
    """Predicts a step of a calibrated model with a method, whose workers all have the same link.

    Raises:
        CannotPlan: the mode is not modelled.
    """
    link = link.model_copy(update={"delay": link.delay + calibration.message_s})
    match sync.exchanges:
        case "buckets" if sync.gathers_buckets:
            return _hooked(calibration, work, sync, link, workers)
        case "updates":
            return _async(calibration, work, link, workers)
        case "buckets" | "weights":
            every = sync.local_steps or calibration.steps_an_epoch
            fragments, delay = getattr(sync, "fragments", 1), getattr(sync, "delay_steps", 0)
            return _in_rounds(calibration, work, sync.pattern_name, link, workers, every, fragments, delay)
        case "activations":
            raise CannotPlan(
                f"sync.mode = {sync.mode}: taugrad plan does not support it; docs/synchronization.md has "
                "formulas for its bytes"
            )


def island_size(sync: RealSync, link: Link, workers: int) -> int:
    """Workers of an island: 1 without islands, those of a site for islands by host."""
    island = getattr(sync, "island", None)
    if island == "host":
        return 1 if link.trunk is None else link.trunk.workers_of_site(workers)
    return island or 1


def _hooked(calibration: Calibration, work: MethodWork, sync: RealSync, link: Link, workers: int) -> StepTime:
    """The mode allgather, bucket by bucket."""
    size = island_size(sync, link, workers)
    width = 2 if getattr(sync, "island_reduce", "fp32") == "bf16" else 4

    def inside(elements: int, width: int) -> float:
        """Seconds of a reduce-scatter or of an all-gather."""
        processing_s = calibration.reduce_s * elements / calibration.parameters * width / 4
        return model.in_an_island(link, workers, size, width * elements, processing_s).seconds / 2

    now = sum(inside(bucket.elements, 4) for bucket in calibration.buckets)  # weights, to compute forward
    computed = free = 0.0
    arrivals: list[float] = []
    total = NOTHING
    for bucket, bucket_work in zip(calibration.buckets, work.buckets, strict=True):
        now += bucket.ready_s - computed + bucket_work.compress_s / size
        now += inside(bucket.elements, 4) + inside(bucket.elements, width)
        computed = bucket.ready_s
        exchange = _of_bucket(calibration, work, bucket.elements, bucket_work.nbytes, sync, link, workers)
        started = max(now, free)
        free = started + exchange.link_s
        arrivals.append(free + exchange.wait_s)
        total += exchange
        if work.blocks:
            now = arrivals[-1]
    now += calibration.backward_end_s - computed + work.hook_s
    for arrived, bucket_work in zip(arrivals, work.buckets, strict=True):
        messages = 0 if work.all_reduces else workers // size
        now = max(now, arrived) + (bucket_work.fill_s + messages * bucket_work.read_s) / size
    optimizer_s = calibration.optimizer_s / size
    return StepTime(
        now + optimizer_s, calibration.backward_end_s + optimizer_s, total.seconds, total.received
    )


def _of_bucket(
    calibration: Calibration,
    work: MethodWork,
    elements: int,
    nbytes: float,
    sync: RealSync,
    link: Link,
    workers: int,
) -> Exchange:
    size = island_size(sync, link, workers)
    if not work.all_reduces:
        if size > 1:
            return model.between_islands(link, workers, size, nbytes)
        return model.gathered(link, workers, nbytes, sync.pattern_name)
    if size > 1 and (trunk := link.trunk) is not None:  # a site's workers share it, each for its shard
        shared = trunk.link.model_copy(update={"rate": trunk.link.rate / trunk.workers_of_site(workers)})
        link = link.model_copy(update={"trunk": trunk.model_copy(update={"link": shared})})
    workers, nbytes = workers // size, nbytes / size
    whole_s = calibration.reduce_half_s if work.half else calibration.reduce_s
    width = 2 if work.half else 4
    processing_s = whole_s * nbytes / (width * calibration.parameters)
    one = model.all_reduce(link, workers, nbytes / work.all_reduces, processing_s / work.all_reduces)
    return one * work.all_reduces


def _in_rounds(
    calibration: Calibration,
    work: MethodWork,
    pattern: str,
    link: Link,
    workers: int,
    every: int,
    fragments: int,
    delay: int,
) -> StepTime:
    """Exchanges of the model, or of its fragments in turn, after every few steps.

    With a delay, workers wait for the part of an exchange that its steps do not hide.
    """
    share, nbytes = 1 / workers, work.nbytes / fragments
    compress_s, read_s, fill_s = work.compress_s, work.read_s, work.fill_s
    if pattern == "ring":
        exchange = model.ring(link, workers, nbytes)
        hops = (workers - 1) * share
        spent = hops * (compress_s + 2 * (read_s + fill_s)) + share * compress_s
    elif pattern == "sharded":
        exchange = model.sharded(link, workers, nbytes, nbytes)
        spent = (1 + share) * compress_s + 2 * read_s + (1 + share) * fill_s
    elif pattern == "parameter_server":
        exchange = model.parameter_server(link, workers, nbytes, nbytes)
        spent = 2 * compress_s + (workers + 1) * read_s + 2 * fill_s
    else:
        exchange = model.gathered(link, workers, nbytes, pattern)
        spent = compress_s + workers * read_s + fill_s
    computing, turns = calibration.compute_s, every / fragments
    waited = exchange.seconds
    if delay:
        waited = max(0.0, waited - delay * computing, exchange.link_s - turns * computing)
    seconds = computing + waited / turns + spent / every
    return StepTime(seconds, computing, exchange.seconds / turns, exchange.received / turns)


def _async(calibration: Calibration, work: MethodWork, link: Link, workers: int) -> StepTime:
    """Without waiting, a step takes the processor's seconds or those of the link, whichever are more."""
    exchange = model.to_all(link, workers, work.nbytes)
    processor_s = calibration.compute_s + work.compress_s + (workers - 1) * work.read_s + work.fill_s
    return StepTime(
        max(processor_s, exchange.link_s), calibration.compute_s, exchange.link_s, exchange.received
    )


def worker_bytes(
    calibration: Calibration, work: MethodWork, sync: RealSync, workers: int, island: int = 1
) -> float:
    """Bytes of a worker: weights, gradients, buckets, optimizer, residuals and messages; no activations.

    `island` is the number of workers that share one copy of the model.
    """
    whole = _FLOAT * calibration.parameters
    if island > 1:
        # Shards of weights, gradients and the copy that is exchanged; and weights that are gathered.
        messages = work.nbytes if work.all_reduces else workers // island * work.nbytes
        return whole + (3 * whole + calibration.optimizer_bytes + work.kept_bytes + messages) / island
    kept = 2 * whole + calibration.optimizer_bytes + work.kept_bytes
    hooked = sync.exchanges == "buckets"
    if hooked:
        kept += whole  # the buckets
    if sync.is_local:
        kept += 2 * whole  # the weights of the last round, and the difference to them
        if sync.outer_momentum:
            kept += whole
    pattern = sync.pattern_name
    if pattern in ("sharded", "parameter_server"):
        # The sum's own residual: of all elements where worker 0 has it, of 1/N of them with shards.
        share = 1 / workers if pattern == "sharded" else 1.0
        kept += share * work.kept_bytes + (0 if hooked else whole)
    if work.all_reduces and sync.gathers_buckets:
        return kept + work.nbytes
    if pattern == "ring":
        messages = 2 * work.nbytes
    elif pattern == "sharded":
        messages = 3 * work.nbytes  # the parts, those of the others, and the sums
    else:
        messages = workers * work.nbytes
    return kept + messages
