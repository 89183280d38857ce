"""One exchange after the other by a pattern, each to its end, and counted."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..bucket.ledger import Step, Traffic
from ..errors import NonFiniteGradient
from ..spans import RECORDER, Lane, duration
from .carrier import Carrier
from .exchange import Exchange
from .lockstep import Coroutine
from .patterns.base import ExchangeRecord, Pattern, RefusedUpdate
from .resizing import ranks_together, resharded

STATE_VERSION = 6
"""Since 2 a worker's state says whose it is; since 4 it has residuals of whole parameters; since 5 what is
kept of sums is named downlink; since 6 links are a row."""


class Averaging:
    """One worker among those that agree on means: its pattern, and the carrier of its rounds.

    Attributes:
        pattern: this worker's.
        done: means so far.
        residual_squares: sum of squares of what this worker had not sent after the latest one.
    """

    def __init__(
        self,
        carrier: Carrier,
        pattern: Pattern,
        names: Sequence[str],
        tag: str = "round",
        nonfinite: Callable[[str, int], Exception] = NonFiniteGradient,
    ) -> None:
        """Prepares exchanges; no other one under way has the tag.

        Errors have the tensors' names: `nonfinite` makes that of one which is not finite, on a rank.
        """
        self.pattern, self.done, self.residual_squares = pattern, 0, 0.0
        self._carrier, self._names, self._tag, self._nonfinite = carrier, list(names), tag, nonfinite

    def begin(
        self,
        tensors: Sequence[Tensor],
        *,
        rms: Mapping[str, float] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        refusal: int | None = None,
    ) -> Exchange:
        """Starts an exchange of tensors (`Exchange.start`); for the others see `ExchangeRecord`."""
        traffic = Traffic(self._carrier.workers)
        record = ExchangeRecord(traffic, self.done, rms=rms, weights=weights, refusal=refusal)
        exchange = Exchange(self.pattern, record, self._carrier, self._tag)
        exchange.start(tensors)
        return exchange

    def complete(self, exchange: Exchange) -> Coroutine[Tensor | RefusedUpdate]:
        """Goes on with an exchange to its end, in any thread.

        Returns:
            The mean (or sum), float32 [all elements], the same on every worker; or who has no update.

        Raises:
            PeerLost: another worker is gone, or has been silent for too long.
            CorruptMessage: what arrived is no message of a round.
        """
        while not exchange.payloads.done():
            yield None
            began, ended = exchange.go_on(waits=self._carrier.waits)
            record_wait(exchange.record, began, ended)
        exchange.payloads.result()  # raises at once: simulated workers wait for what will not come
        mean: Tensor | RefusedUpdate = yield partial(self._mean, exchange)
        return mean

    def _mean(self, exchange: Exchange) -> Tensor | RefusedUpdate:
        refusals = exchange.refusals(self._names)
        return refusals[0] if refusals else exchange.assemble()

    def refusal(self, refused: RefusedUpdate) -> Exception:
        """The error for a tensor that is not finite."""
        return self._nonfinite(self._names[refused.ordinal], refused.rank)

    def finish(
        self, mean: Tensor | RefusedUpdate, record: ExchangeRecord, step: Step, traffic: Traffic
    ) -> Tensor | None:
        """Counts what was sent, and tells the pattern that it has arrived.

        Returns the mean, or None where all leave it out. Raises what `nonfinite` makes, on every worker, if a
        worker's part is not finite and the method refuses that.
        """
        pattern = self.pattern
        if isinstance(mean, RefusedUpdate):
            if pattern.nonfinite == "refuse":
                raise self.refusal(mean) from None
            pattern.put_back()
            step.skip(self._names[mean.ordinal], mean.rank)
        self.done += 1
        record.count(step, traffic)
        step.layers += record.layers
        _count_times(record, step)
        self.residual_squares = pattern.residual_squares()
        step.residual_squares += self.residual_squares
        step.keeps_residuals |= pattern.feedback.keeps_residuals
        pattern.commit()
        return None if isinstance(mean, RefusedUpdate) else mean

    # States.

    def worker_state(self) -> dict[str, Any]:
        """What this worker has not sent; plain numbers and tensors."""
        return {
            "version": STATE_VERSION,
            "workers": self._carrier.workers,
            "ranks": {str(self._carrier.rank): self.pattern.feedback.state_dict()},
        }

    def load_worker_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `worker_state` gave to the same worker; raises ValueError if it does not fit."""
        saved = state_of_rank(state, self._carrier.rank, self._carrier.workers, STATE_VERSION)
        self._restore(saved)

    def reshard(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what `worker_state` gave to all processes of another number of workers.

        Raises ValueError where they are not the states of all workers of a run.
        """
        former = ranks_together([state["ranks"] for state in states], [state["workers"] for state in states])
        pattern, worker = self.pattern, self.pattern.worker
        kept = resharded(
            former,
            worker.rank,
            worker.workers,
            pattern.reduction,
            [shard.names for shard in pattern.shards],
            pattern.feedback,
            reduces_shards=pattern.reduces_shards,
        )
        self._restore(kept)

    def _restore(self, kept: Mapping[str, Any]) -> None:
        self.pattern.load_state_dict(kept)
        self.residual_squares = self.pattern.residual_squares()


def record_wait(record: ExchangeRecord, began: float, ended: float) -> None:
    """Counts that an exchange has waited for others' messages, in the training thread or in another one."""
    record.waited_s += ended - began
    RECORDER.add("exchange", "wire", began, ended, "round")
    if record.compressed_before is None:
        RECORDER.add("wait", "compute", began, ended)


def _count_times(record: ExchangeRecord, step: Step) -> None:
    """Counts what the training thread did, and what another one did beside it."""
    cut, decoded_s = record.compressed_before, duration(record.decoding)
    step.exchange_s += record.waited_s
    step.compress_s += duration(record.compressing[:cut])
    step.decompress_s += decoded_s
    step.overlapped_decode_s += 0.0 if cut is None else decoded_s
    lane: Lane = "compute" if cut is None else "wire"
    for place, interval in enumerate(record.compressing):
        RECORDER.add("compress", "compute" if cut is None or place < cut else "wire", *interval)
    for interval in record.decoding:
        RECORDER.add("decode", lane, *interval)


def state_of_rank(states: Mapping[str, Any], rank: int, workers: int, version: int) -> dict[str, Any]:
    """A worker's state among those of a process.

    Raises ValueError where they are of an older program or of other workers.
    """
    if states.get("version") != version:
        raise ValueError(
            f"version {states.get('version')!r} of workers' states; this program reads {version}"
        )
    if states["workers"] != workers or str(rank) not in states["ranks"]:
        raise ValueError(
            f"the states of ranks {[*map(int, states['ranks'])]} of {states['workers']} workers, this is "
            f"rank {rank} of {workers}: each worker's residual belongs to its part of the data"
        )
    saved: dict[str, Any] = states["ranks"][str(rank)]
    return saved
