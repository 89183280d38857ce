"""Messages of compressed gradients, exchanged bucket by bucket by a pattern (`exchange/patterns`).

The residual of each parameter in a bucket is added to its gradient. A rule decides what to send and keeps the
rest. The pattern's messages are under way while the backward pass goes on. Every worker adds up the same
messages in the same order, so that replicas stay bit-identical.

A bucket's way, in the thread that trains: `synchronize`, `_send`; `Exchange.start` begins the pattern's
rounds, which have `Compressor.compress` (`bucket/compressor.py`) run the method and write the message; the
carrier sends it (`exchange/mesh.py`). Once the others' messages are here, in the decoder's thread, or for the
last bucket in the one that trains: `Exchange._go_on` ends the rounds, `_finish` has the pattern read all
messages (`Compressor.read_all`) and add them up (`bucket/summing.py`), and `_count` counts the exchange.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.bucket import Bucket
from ..bucket.compressor import Worker
from ..bucket.feedback import Feedback
from ..bucket.layout import cut_parameters, shards_of
from ..bucket.ledger import Step, Traffic
from ..errors import NonFiniteGradient
from ..exchange.addresses import places_of
from ..exchange.exchange import Exchange, RoundCarrier
from ..exchange.keys import require_long_enough
from ..exchange.mesh import connected, most_bytes_of
from ..exchange.patterns import downlink_method, pattern_for
from ..exchange.patterns.base import ExchangeRecord, Pattern, RefusedUpdate
from ..exchange.sites import Sites
from ..methods import CompressedMethod
from ..ops import ops_for
from ..ops.interface import Readback
from ..spans import RECORDER, union
from ..wire.message import VERSION
from .base import Fail, Options, Reducer


@dataclass(frozen=True)
class UnderWay:
    """A bucket's exchange."""

    bucket: Bucket
    exchange: Exchange
    gradients: Sequence[Tensor]
    """In the order of the pattern's parameters."""
    in_order: bool
    """Whether a sum by the pattern lies as the bucket does."""
    handed_over: float
    """When its first messages were, in seconds of `perf_counter`."""

    @property
    def names(self) -> list[str]:
        """The pattern's parameters."""
        return self.exchange.pattern.names

    def fill(self) -> None:
        """Fills the buffer with the sum of all workers' updates, or with their mean."""
        buffer, shards = self.bucket.buffer, self.exchange.pattern.shards
        direct = self.in_order and buffer.dtype == torch.float32
        total = self.exchange.assemble(buffer if direct else None)
        if not direct:
            places = [place for shard in shards for place in shard.of(self.gradients)]
            torch._foreach_copy_(places, list(torch.split(total, [place.numel() for place in places])))
        if self.bucket.scale is not None:
            buffer.mul_(self.bucket.scale)

    def mark(self, refusals: Sequence[RefusedUpdate]) -> None:
        """Marks the gradients of parameters that were refused: zeros would pass for gradients."""
        for refusal in refusals:
            gradient = self.gradients[refusal.ordinal]
            if self.bucket.scale is not None:
                gradient[0] = torch.inf  # for every worker's scaler to find
            elif not gradient[0]:
                # Zeros would look like gradients that were cleared, and a further pass like a new step.
                gradient[0] = torch.finfo(gradient.dtype).tiny


class CompressedReducer(Reducer):
    """Compression with residuals; see the module's text."""

    def __init__(
        self,
        method: CompressedMethod,
        group: dist.ProcessGroup,
        parameters: Mapping[str, Tensor],
        fail: Fail,
        feedback: Feedback,
        options: Options,
    ) -> None:
        """Prepares to synchronize these parameters; for arguments and errors see `WorkerState`."""
        super().__init__(method, group, fail)
        require_long_enough(options.key)
        assert options.pattern is not None
        pattern, sites = options.pattern, options.sites
        self._method, self._pattern, self._parameters = method, pattern, parameters
        self._feedback, self._options = feedback, options
        self._sites = None if sites is None else Sites.of(sites, self._workers)
        """For hierarchical; None until the first exchange if hosts decide."""
        self._key = None if self._workers == 1 else options.key  # a worker that is alone sends nothing
        self._rank = dist.get_rank(group)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(parameters)}
        self._downlink = options.downlink or downlink_method(method)
        shards = 1 if pattern in ("allgather", "hierarchical", "parameter_server") else self._workers
        sizes = {name: parameter.numel() for name, parameter in parameters.items()}
        self.shards = cut_parameters(sizes, shards)
        self.reduces_shards = pattern in ("sharded", "collective", "parameter_server")
        if self.reduces_shards and self._rank < shards:
            feedback.sums = Feedback(self._downlink)
            feedback.sums.slices = dict(self.shards[self._rank])
        self._patterns: dict[tuple[str, ...], tuple[Pattern, list[int]]] = {}
        """By the names in a bucket; with the index among these of each of the pattern's parameters."""
        self._used: list[Pattern] = []
        """By which patterns a step that may be skipped was exchanged."""
        self._workers_on: dict[torch.device, Worker] = {}
        """This worker by the device of a bucket: a model may lie on several."""
        self._readback: Readback | None = None
        """For messages of fixed size."""
        self._carrier: RoundCarrier | None = None
        self._close: Callable[[], object] | None = None
        self._decoder = ThreadPoolExecutor(1, "taugrad-decode")
        """Goes on with exchanges, and adds up what has arrived, beside the backward pass."""

    @property
    def settings(self) -> dict[str, str]:
        return {
            "pattern": self._pattern,
            "messages": "not authenticated" if self._key is None else "authenticated",
            **({} if self._downlink == downlink_method(self._method) else {"downlink": str(self._downlink)}),
            **({"sites": str(self._sites or "by host")} if self._pattern == "hierarchical" else {}),
            "message version": str(VERSION),
        }

    def open(self) -> None:
        if self._carrier is not None:
            return
        if self._pattern == "hierarchical":
            self._sites = self._sites or Sites.by_place(places_of(self._group))
        most_bytes = most_bytes_of(self._parameters.values())
        self._carrier = mesh = connected(self._group, most_bytes=most_bytes, key=self._key)
        self._close = finalize(self, mesh.close)

    def close(self) -> None:
        if self._close is not None:
            self._close()

    def begin(self, iteration: int) -> None:
        super().begin(iteration)
        self._iteration = iteration

    def end_step(self, *, skipped: bool, stepped: Set[str]) -> None:
        for pattern in reversed(self._used):
            if skipped:
                pattern.put_back(stepped)
            else:
                pattern.commit()
        self._used = []

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        under_way = self._send(bucket, step, None if bucket.is_awaited else self._decoder.submit)
        exchange, buffer = under_way.exchange, bucket.buffer
        if exchange.pattern.compresses_at_once:
            with self._lock:
                step.count_layers(exchange.record.layers)

        exchanged: Future[None] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        summed = exchanged.then(lambda _: self._finish(under_way, step))
        exchange.payloads.add_done_callback(lambda _: exchanged.set_result(None))
        while bucket.is_awaited and not exchange.payloads.done():
            self._times.held(*exchange.go_on())
        return summed

    def _finish(self, under_way: UnderWay, step: Step) -> Tensor:
        """Called when the last messages are here: the bucket's buffer, which holds the result."""
        bucket, exchange, received = under_way.bucket, under_way.exchange, perf_counter()
        with self.noting_failures():
            refusals = exchange.refusals(under_way.names)
        if refusals and self._nonfinite == "refuse":
            refusal = refusals[0]
            raise self._fail(NonFiniteGradient(under_way.names[refusal.ordinal], refusal.rank))
        with self.noting_failures():
            under_way.fill()
        under_way.mark(refusals)
        bucket.add_earlier(1.0)
        if bucket.buffer.is_cuda:  # the CPU copy is not stream-ordered
            torch.cuda.current_stream(bucket.buffer.device).synchronize()
        self._count(under_way, step, refusals, received)
        return bucket.buffer

    def _send(
        self, bucket: Bucket, step: Step, schedule: Callable[[Callable[[], None]], object] | None
    ) -> UnderWay:
        """Compresses a bucket, and sends the first messages; `schedule` as for `Exchange`."""
        assert self._carrier is not None, "workers are connected before their first exchange"
        pattern, places = self._pattern_of(bucket)
        shares, in_order = bucket.shares, len(pattern.shards) == 1 and places == sorted(places)
        gradients = [shares[place] for place in places]
        if self._nonfinite == "skip":
            self._used.append(pattern)
        # Unique within a step, and the same on every worker: the ordinal of the bucket's first parameter.
        tag = f"bucket {bucket.series + self._ordinals[pattern.names[-1]]}"
        # A scaler drops the gradients of a step that overflows: many of them are far off.
        copies = bucket.scale is not None
        record = ExchangeRecord(Traffic(self._workers), self._iteration, copies=copies)
        exchange = Exchange(pattern, record, self._carrier, tag, schedule)
        started = perf_counter()
        exchange.start(gradients)
        handed_over = perf_counter()
        exchange.record.traffic.sums.elements = bucket.buffer.numel()
        step.compress_s += handed_over - started
        RECORDER.add("compress", "compute", started, handed_over, bucket.title)
        self._times.began()
        return UnderWay(bucket, exchange, gradients, in_order, handed_over)

    def _count(
        self, under_way: UnderWay, step: Step, refusals: Sequence[RefusedUpdate], received: float
    ) -> None:
        """Counts an exchange whose last messages were here at such a time."""
        pattern, record = under_way.exchange.pattern, under_way.exchange.record
        with self._lock:
            if not pattern.compresses_at_once:
                step.count_layers(record.layers)
            record.count(step, self.traffic)
            step.keeps_residuals |= pattern.feedback.keeps_residuals
            sums = (tally for column in record.sum_columns for tally in column)
            step.residual_squares += sum(tally.residual_squares for tally in sums)
            for refusal in refusals:
                step.skip(under_way.names[refusal.ordinal], refusal.rank)
        self._times.arrived(
            step,
            under_way.handed_over,
            received,
            under_way.bucket.title,
            compressing=record.compressing,
            decoding=union([*record.decoding, (received, perf_counter())]),
        )

    def _pattern_of(self, bucket: Bucket) -> tuple[Pattern, list[int]]:
        """A bucket's pattern, and the index in the bucket of each of the pattern's parameters.

        Parameters are in the model's reverse order. DDP orders them differently in a process's first backward
        pass than in later ones, and what is sent, and its bytes, must not depend on that.
        """
        key = tuple(bucket.names)
        if key not in self._patterns:
            places = sorted(range(len(key)), key=lambda place: -self._ordinals[key[place]])
            names = [key[place] for place in places]
            pattern = pattern_for(
                self._pattern,
                self._method,
                self._downlink,
                self._worker_on(bucket.buffer.device),
                {name: self._parameters[name].numel() for name in names},
                sites=self._sites,
                shards=shards_of(self.shards, names),
                feedback=self._feedback,
            )
            self._patterns[key] = pattern, places
        return self._patterns[key]

    def _worker_on(self, device: torch.device) -> Worker:
        if device not in self._workers_on:
            options, ops = self._options, ops_for(device, self._options.threads)
            self._workers_on[device] = Worker(
                *(ops, self._rank, self._workers, options.hold_back_zeros, options.model_sizes),
                self._readback,
            )
        return self._workers_on[device]
