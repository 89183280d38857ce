"""Sends metrics to MLflow in batches from a background thread, so that training does not wait.

A silent store never slows training down: metrics wait in memory, in order, and are sent again until they are
accepted. A store that answers, but is slower than training (such as a local database under a very small
model), slows training down once very many metrics wait, so memory stays bounded and the end of a run is
short. Sending a metric twice does no harm: it keeps its timestamp, and MLflow's databases have one row for
each (run, key, step, timestamp, value).
"""

import contextlib
import itertools
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Protocol,
    TypedDict,
    runtime_checkable,
)

from .ended import ENDED
from .masking import masked

if TYPE_CHECKING:
    from mlflow.entities import Metric

MAX_BATCH = 1000
"""Number of metrics that MLflow accepts in one request."""

MOST_WAITING = 100_000
"""The largest number of metrics that wait for a store that answers: about 20 MB."""

_ANSWERS_S = 5.0
"""Training does not wait for a store that has accepted nothing for this number of seconds."""
_LINGER_S = 3.0  # how long a batch may wait to fill up; a full one costs half as much a metric
_LONGEST_RETRY_S = 30.0
_HURRIED_RETRY_S = 0.5  # while somebody waits in flush or close


class Store(Protocol):
    """The part of `MlflowClient` that stores metrics."""

    def log_batch(self, run_id: str, metrics: Sequence["Metric"] = ...) -> Any:
        """Stores metrics of a run."""


@runtime_checkable
class PointStore(Protocol):
    """Another store, which makes MLflow's metrics itself."""

    def log_points(self, run_id: str, points: "Sequence[Point]") -> None:
        """Stores metrics of a run."""


Kind = Literal["iteration", "evaluation", "total"]
"""When metrics are logged: at every iteration, at every evaluation, once at the end."""


class Stored(NamedTuple):
    """The last step that an earlier start of the run has stored, for each kind of metric; -1 for none."""

    iteration: int = -1
    evaluation: int = -1
    total: int = -1


class PendingMetric(TypedDict):
    """A metric that has not reached the store, as plain data."""

    key: str
    value: float
    timestamp: int
    """Milliseconds since 1970."""
    step: int
    kind: NotRequired[Kind]
    """Set if the store may already have this step: it has not said yet what an earlier start stored."""


class Point(NamedTuple):
    """A value of a metric."""

    key: str
    value: float
    timestamp: int
    """Milliseconds since 1970."""
    step: int
    kind: Kind | None
    """None: restored, from before `Stored` was known."""

    def is_new(self, stored: Stored) -> bool:
        """Whether an earlier start has not stored it."""
        if self.kind == "iteration":
            return self.step > stored.iteration
        if self.kind == "evaluation":
            return self.step > stored.evaluation
        if self.kind == "total":
            return self.step > stored.total
        # Of the last step that is stored, a part may be missing; sending a point again changes nothing.
        return self.step >= stored.iteration


class MetricWriter:
    """Sends a run's metrics from a daemon thread, in the order in which they were logged.

    The metrics of one `log` call are sent in one batch, if they fit, so that a database has all of them or
    none.

    Args:
        store: An `MlflowClient`, whatever has its `log_batch`, or a `PointStore`.
        run_id: The run.
        batch_size: Metrics in a request, 1 to 1000.
        retry_seconds: Wait before a failed request is sent again; doubles up to 30 s.
        stored: Asks which steps an earlier start of this run has stored, so that no step is stored twice. It
            is called from the writer's thread before anything is sent, and again until it answers.
        notify: Called with a message when the store stops answering, answers again, or refuses something;
            from the writer's thread.

    Raises:
        ValueError: `batch_size` or `retry_seconds` is out of range.
    """

    def __init__(
        self,
        store: Store | PointStore,
        run_id: str,
        *,
        batch_size: int = MAX_BATCH,
        retry_seconds: float = 2.0,
        stored: Callable[[], Stored] = Stored,
        notify: Callable[[str], None],
    ) -> None:
        if not 1 <= batch_size <= MAX_BATCH:
            raise ValueError(f"batch_size is {batch_size}, not 1 to {MAX_BATCH}")
        if not retry_seconds > 0:
            raise ValueError(f"retry_seconds is {retry_seconds}, not above 0")
        self._store = store
        self._run_id = run_id
        self._batch_size = batch_size
        self._retry_seconds = retry_seconds
        self._ask_stored = stored
        self._stored: Stored | None = None
        self._notify = notify
        self._queue: deque[Point] = deque()
        self._changed = threading.Condition()
        self._waiters = 0  # callers of flush and close, for whom batches are sent at once
        self._retry_now = False
        self._closed = False
        self._down = False
        self._backlog = 0  # after an outage: metrics that waited and are not delivered yet
        self._recovered = 0  # after an outage: metrics delivered
        self._taken_at = -math.inf  # when the store took metrics last
        self._refusals_told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="taugrad-metrics", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float], *, kind: Kind = "iteration") -> None:
        """Takes metrics of a step and returns at once, unless too many wait for a store that answers.

        Args:
            step: The iteration.
            values: Metrics by name; NaN and infinities are allowed.
            kind: With which steps of an earlier start they are compared.

        Raises:
            RuntimeError: The writer was closed.
        """
        now_ms = time.time_ns() // 1_000_000
        self._append([Point(key, float(value), now_ms, step, kind) for key, value in values.items()])

    def restore(self, pending: Iterable[PendingMetric]) -> None:
        """Adds what an earlier writer had not delivered, with the original timestamps.

        Steps before the last stored one are dropped: delivery is in order, so the store has them. The last
        stored step may be incomplete; sending it again does not change what is there.

        Args:
            pending: What `pending()` returned.

        Raises:
            RuntimeError: The writer was closed.
        """
        self._append([_restored(each) for each in pending])

    def pending(self) -> list[PendingMetric]:
        """The metrics that the store has not confirmed yet, oldest first, for checkpoints."""
        with self._changed:
            points, known = list(self._queue), self._stored is not None
        return [_pending(point, known) for point in points]

    def flush(self, timeout: float) -> bool:
        """Waits until the store has everything that was logged.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether everything was delivered.
        """
        with self._changed:
            self._waiters += 1
            self._retry_now = True
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._queue, timeout)
            finally:
                self._waiters -= 1

    def close(self, timeout: float) -> int:
        """Tries to deliver the rest, then ends the thread. Closing twice is allowed.

        Args:
            timeout: Seconds to wait at most, even if a request hangs.

        Returns:
            How many metrics the store has not confirmed; `undelivered` has them.
        """
        deadline = time.monotonic() + timeout
        if not self._closed:
            self.flush(timeout)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            return len(self._queue)

    def undelivered(self) -> str:
        """What the store has not confirmed, as JSON lines for `deliver`."""
        return "".join(json.dumps(metric) + "\n" for metric in self.pending())

    def _append(self, points: list[Point]) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("the metric writer was closed")
            was_empty = not self._queue
            stored = self._stored
            self._queue.extend(points if stored is None else [p for p in points if p.is_new(stored)])
            if was_empty or len(self._queue) >= self._batch_size:
                self._changed.notify_all()
            while len(self._queue) > MOST_WAITING and self._answers and not self._closed:
                self._changed.wait(_ANSWERS_S / 10)

    @property
    def _answers(self) -> bool:
        """Whether the store accepted metrics a moment ago."""
        return time.monotonic() - self._taken_at < _ANSWERS_S

    def _run(self) -> None:
        wait = self._retry_seconds
        while batch := self._next_batch():
            try:
                if self._stored is None:
                    self._drop_stored(self._ask_stored())
                    continue
                refused = _send(self._store, self._run_id, batch)
            except Exception as error:  # whatever fails, training goes on
                self._tell_down(error)
                self._pause(wait)
                wait = min(2 * wait, _LONGEST_RETRY_S)
                continue
            wait = self._retry_seconds
            self._delivered(batch, refused)

    def _drop_stored(self, stored: Stored) -> None:
        with self._changed:
            self._stored = stored
            self._queue = deque(point for point in self._queue if point.is_new(stored))
            self._changed.notify_all()

    def _next_batch(self) -> list[Point]:
        """The oldest metrics, once there are enough or they have waited long enough; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            self._changed.wait_for(
                lambda: len(self._queue) >= self._batch_size or self._waiters or self._closed, _LINGER_S
            )
            if self._closed:
                return []
            points = list(itertools.islice(self._queue, self._batch_size + 1))
        return points[: _whole_calls(points, self._batch_size)]

    def _delivered(self, batch: list[Point], refused: list[tuple[Point, Exception]]) -> None:
        with self._changed:
            waiting = len(self._queue)
            for _ in batch:
                self._queue.popleft()
            self._taken_at = time.monotonic()
            self._changed.notify_all()
        if self._down:
            self._tell_backlog(waiting, len(batch), len(refused))
        for point, error in refused:
            what = point.key if math.isfinite(point.value) else "non-finite values"
            if what not in self._refusals_told:
                self._refusals_told.add(what)
                self._tell(
                    f"MLflow refuses {point.key}={point.value} at step {point.step}, dropped "
                    f"({masked(str(error))})"
                )

    def _tell_down(self, error: Exception) -> None:
        if self._down:
            return
        self._down = True
        with self._changed:
            waiting = len(self._queue)
        reason = masked(str(error).strip().partition("\n")[0]) or type(error).__name__
        self._tell(f"MLflow does not answer ({reason}): training goes on, {waiting} metrics wait")

    def _tell_backlog(self, waiting: int, sent: int, refused: int) -> None:
        """Says once that the store is back: when all that had waited by then is delivered."""
        if self._backlog == 0:
            self._backlog = waiting
        self._backlog = max(0, self._backlog - sent)
        self._recovered += sent - refused
        if self._backlog == 0:
            self._tell(f"MLflow answers again: {self._recovered} metrics delivered")
            self._down = False
            self._recovered = 0

    def _pause(self, seconds: float) -> None:
        """Waits for the next attempt; less when somebody waits for the rest."""
        start = time.monotonic()
        with self._changed:
            while not (self._retry_now or self._closed):
                pause = min(seconds, _HURRIED_RETRY_S) if self._waiters else seconds
                left = start + pause - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._retry_now = False

    def _tell(self, message: str) -> None:
        # A broken display must not end the delivery.
        with contextlib.suppress(Exception):
            self._notify(message)


def deliver(path: Path, store: Store, run_id: str, stored: Callable[[], Stored] = Stored) -> int:
    """Sends the metrics of a file that `MetricWriter.undelivered` wrote; doing it again changes nothing.

    Args:
        path: The file.
        store: An `MlflowClient`, or whatever has its `log_batch`.
        run_id: The run.
        stored: Asks the store which steps it has; only called if the file may repeat some.

    Returns:
        How many metrics the store accepted; fewer than the file has lines when it refused some for good.

    Raises:
        ValueError: A line of the file is not a metric.
        Exception: What the store raises when it does not answer; the file is still there.
    """
    points: list[Point] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            metric = json.loads(line)
            if ENDED in metric:
                continue  # no metric, but how the run ended
            points.append(_restored(metric))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a metric ({error})") from error
    if any(point.kind is not None for point in points):
        there = stored()
        points = [point for point in points if point.kind is None or point.is_new(there)]
    accepted = 0
    while points:
        batch = points[: _whole_calls(points, MAX_BATCH)]
        accepted += len(batch) - len(_send(store, run_id, batch))
        points = points[len(batch) :]
    return accepted


def _restored(metric: PendingMetric) -> Point:
    return Point(
        metric["key"],
        float(metric["value"]),
        int(metric["timestamp"]),
        int(metric["step"]),
        metric.get("kind"),
    )


def _pending(point: Point, known: bool) -> PendingMetric:
    plain = PendingMetric(key=point.key, value=point.value, timestamp=point.timestamp, step=point.step)
    if not known and point.kind is not None:
        plain["kind"] = point.kind
    return plain


def _whole_calls(points: list[Point], limit: int) -> int:
    """How many of the first `limit` points to send, so that no `log` call is cut in two."""
    if len(points) <= limit:
        return len(points)
    cut = limit
    while cut and _same_call(points[cut - 1], points[cut]):
        cut -= 1
    return cut or limit


def _same_call(a: Point, b: Point) -> bool:
    return (a.step, a.timestamp) == (b.step, b.timestamp)


def _send(store: Store | PointStore, run_id: str, batch: list[Point]) -> list[tuple[Point, Exception]]:
    """Sends a batch; finds the metrics that the store will never accept.

    Returns:
        The refused metrics, each with the reason; everything else is stored.

    Raises:
        Exception: Another attempt may help, or the whole run is refused.
    """
    refused = _send_or_split(store, run_id, batch)
    if len(batch) > 1 and len(refused) == len(batch) and any(math.isfinite(p.value) for p in batch):
        # Not one metric was good enough: more likely the run or the store is at fault. Keep them.
        raise refused[0][1]
    return refused


def _send_or_split(
    store: Store | PointStore, run_id: str, batch: list[Point]
) -> list[tuple[Point, Exception]]:
    try:
        send_points(store, run_id, batch)
    except Exception as error:
        # A deleted run has the same code as a bad metric; only the message tells them apart.
        code = getattr(error, "error_code", None)  # MLflow's, here or in a process of its own
        if code != "INVALID_PARAMETER_VALUE" or "'active' state" in str(error):
            raise
        if len(batch) == 1:
            return [(batch[0], error)]
        middle = len(batch) // 2
        first = _send_or_split(store, run_id, batch[:middle])
        return first + _send_or_split(store, run_id, batch[middle:])
    return []


def send_points(store: Store | PointStore, run_id: str, points: Sequence[Point]) -> None:
    """Sends metrics in one request."""
    if isinstance(store, PointStore):
        store.log_points(run_id, points)
        return
    from mlflow.entities import Metric  # noqa: PLC0415 - takes two seconds

    metrics = [Metric(each.key, each.value, each.timestamp, each.step) for each in points]
    sent = store.log_batch(run_id, metrics=metrics)
    if sent is not None:
        # MLFLOW_ENABLE_ASYNC_LOGGING: MLflow only promised to send them.
        sent.wait()
