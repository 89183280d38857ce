"""Seconds of a training step: computing, and the part of the exchange that does not overlap with it.

With gradients, buckets become ready during the backward pass, and the link sends them in this order while the
rest is computed. With islands, their weights are gathered before both passes, and they are reduced inside the
island before. Local steps end with an exchange of all weights.

A worker has one processor for everything: compressing delays the rest of its backward pass, and messages are
read after the backward pass.
"""

from dataclasses import dataclass

from taugrad.platform.spec.synchronization import AsyncSync, GradientsSync, RealSync, WeightsSync

from . import exchange_model as model
from .calibrated import BucketWork, Calibration, MethodWork
from .exchange_model import NOTHING, Exchange
from .link import Link

HYBRID = (
    "sync.mode = hybrid: taugrad plan does not support it; docs/synchronization.md has formulas for its bytes"
)
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
        ValueError: the mode is not modelled.
    """
    link = link.model_copy(update={"delay": link.delay + calibration.message_s})
    match sync:
        case GradientsSync():
            return _hooked(calibration, work, sync, link, workers)
        case WeightsSync():
            return _in_rounds(calibration, work, sync, link, workers)
        case AsyncSync():
            return _async(calibration, work, link, workers)
        case _:
            raise ValueError(HYBRID)


def island_size(sync: RealSync, link: Link, workers: int) -> int:
    """Workers of an island: 1 without islands, those of a site for islands by host."""
    island = getattr(sync, "island", None)
    if island == "host":
        return 1 if link.trunk is None else link.trunk.workers_of_site(workers)
    return island or 1


@dataclass(frozen=True)
class _Rounds:
    """What a pattern does with a worker's message."""

    exchange: Exchange
    before_s: float
    """Seconds to compress what the worker sends first."""
    after_s: float
    """Seconds to read what arrives, and to compress what is sent on."""


def _rounds(pattern: str, link: Link, workers: int, work: BucketWork | MethodWork, parts: int = 1) -> _Rounds:
    """The rounds of a pattern, about one of `parts` equal parts of what the work is about."""
    share, nbytes = 1 / workers, work.nbytes / parts
    compress_s, read_s, fill_s = work.compress_s / parts, work.read_s / parts, work.fill_s / parts
    match pattern:
        case "ring":
            hop_s = compress_s + 2 * (read_s + fill_s)
            exchange = model.ring(link, workers, nbytes)
            return _Rounds(exchange, share * compress_s, (workers - 1) * share * hop_s)
        case "sharded" | "collective":
            after_s = share * compress_s + 2 * read_s + (1 + share) * fill_s
            return _Rounds(model.sharded(link, workers, nbytes, nbytes), compress_s, after_s)
        case "parameter_server":
            after_s = compress_s + (workers + 1) * read_s + 2 * fill_s
            return _Rounds(model.parameter_server(link, workers, nbytes, nbytes), compress_s, after_s)
        case _:
            exchange = model.gathered(link, workers, nbytes, pattern)
            return _Rounds(exchange, compress_s, workers * read_s + fill_s)


def _hooked(
    calibration: Calibration, work: MethodWork, sync: GradientsSync, link: Link, workers: int
) -> StepTime:
    """The mode gradients, bucket by bucket."""
    size = island_size(sync, link, workers)

    def inside(elements: int, width: int) -> float:
        """Seconds of a reduce-scatter or of an all-gather."""
        processing_s = calibration.reduce_s * elements / calibration.parameters * width / 4
        return model.in_an_island(link, workers, size, width * elements, processing_s).seconds / 2

    now = sum(inside(bucket.elements, 4) for bucket in calibration.buckets)  # weights, to compute forward
    computed = free = 0.0
    arrivals: list[tuple[float, float]] = []
    total = NOTHING
    for bucket, bucket_work in zip(calibration.buckets, work.buckets, strict=True):
        rounds = _of_bucket(calibration, work, bucket_work, sync, link, workers)
        now += bucket.ready_s - computed + rounds.before_s / size
        now += inside(bucket.elements, 4) + inside(bucket.elements, 2 if sync.island_reduce == "bf16" else 4)
        computed = bucket.ready_s
        free = max(now, free) + rounds.exchange.link_s
        arrivals.append((free + rounds.exchange.wait_s, rounds.after_s / size))
        total += rounds.exchange
        if work.blocks:
            now = arrivals[-1][0]
    now += calibration.backward_end_s - computed + work.hook_s
    for arrived, after_s in arrivals:
        now = max(now, arrived) + after_s
    optimizer_s = calibration.optimizer_s / size
    return StepTime(
        now + optimizer_s, calibration.backward_end_s + optimizer_s, total.seconds, total.received
    )


def _of_bucket(
    calibration: Calibration,
    work: MethodWork,
    bucket: BucketWork,
    sync: GradientsSync,
    link: Link,
    workers: int,
) -> _Rounds:
    size = island_size(sync, link, workers)
    if not (work.all_reduces and sync.gathers_buckets):
        if size == 1:
            return _rounds(sync.pattern, link, workers, bucket)
        exchange = model.between_islands(link, workers, size, bucket.nbytes)
        return _Rounds(exchange, bucket.compress_s, workers // size * bucket.read_s + bucket.fill_s)
    if size > 1 and (trunk := link.trunk) is not None:  # a site's workers share it, each for its shard
        shared = trunk.link.model_copy(update={"rate": trunk.link.rate / trunk.workers_of_site(workers)})
        link = link.model_copy(update={"trunk": trunk.model_copy(update={"link": shared})})
    nbytes = bucket.nbytes / size
    whole_s, width = (calibration.reduce_half_s, 2) if work.half else (calibration.reduce_s, 4)
    processing_s = whole_s * nbytes / (width * calibration.parameters)
    one = model.all_reduce(link, workers // size, nbytes / work.all_reduces, processing_s / work.all_reduces)
    return _Rounds(one * work.all_reduces, bucket.compress_s, bucket.fill_s)


def _in_rounds(
    calibration: Calibration, work: MethodWork, sync: WeightsSync, link: Link, workers: int
) -> StepTime:
    """Exchanges of the model, or of its fragments in turn, after every few steps.

    With a delay, workers wait for the part of an exchange that its steps do not hide.
    """
    steps = (sync.every or calibration.steps_an_epoch) / sync.fragments
    """From one exchange to the next."""
    rounds = _rounds(sync.pattern, link, workers, work, sync.fragments)
    exchange, computing = rounds.exchange, calibration.compute_s
    waited = exchange.seconds
    if sync.delay_steps:
        waited = max(0.0, waited - sync.delay_steps * computing, exchange.link_s - steps * computing)
    seconds = computing + (waited + rounds.before_s + rounds.after_s) / steps
    return StepTime(seconds, computing, exchange.seconds / steps, exchange.received / steps)


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
