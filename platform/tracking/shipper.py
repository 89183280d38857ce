"""Ships a journal to MLflow: in a process of its own while a run trains, and again by `taugrad deliver`.

A store has the records in their order, so the last step that it has of each metric says which are new: it is
asked before the first record, and again after each failure. So nothing is there twice, whatever was killed,
whose answer was lost, and which steps a resumed run makes again.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from .masking import first_line
from .record import LARGE, Record, records_of, shipped, write_down
from .store import open_client

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

MAX_BATCH = 1000
"""Number of metrics that MLflow accepts in one request."""

_READ_BYTES = 2**16  # about as many metrics as a request may have
_LINGER_S = 0.25  # how long metrics may wait for others; a full request costs half as much a metric
_RETRY_S = 2.0
_LOOK_S = 0.1


class Shipper:
    """Sends records of a run that are not in the store yet; the store is asked at once what it has.

    `notify` gets what it will never accept, once for each name that is not in `reported`.
    """

    def __init__(
        self, client: "MlflowClient", run_id: str, notify: Callable[[str], None], reported: set[str]
    ) -> None:
        self._client, self._run_id, self._notify, self._reported = client, run_id, notify, reported
        run = client.get_run(run_id)
        if run.info.run_id != run_id:  # an empty answer, such as a proxy's, is read as a run without a name
            raise ConnectionError("what answers there is no MLflow server")
        self._stored = {metric.key: int(metric.step) for metric in run.data.to_proto().metrics}

    def ship(self, records: Iterable[Record]) -> int:
        """Sends records; returns how many metrics were new, and accepted.

        Raises what the store raises when it does not answer.
        """
        from mlflow.entities import Metric  # noqa: PLC0415 - takes two seconds

        batch = []
        for record in records:
            for tag, text in record.tags.items():
                self._client.set_tag(self._run_id, tag, text)
            for name, value in record.metrics.items():
                if record.step > self._stored.get(name, -1):
                    batch.append(Metric(name, value, record.time, record.step))
        return sum(self._send(batch[at : at + MAX_BATCH]) for at in range(0, len(batch), MAX_BATCH))

    def _send(self, batch: "Sequence[Metric]") -> int:
        """Sends metrics in a request; drops those that the store will never accept, and says so."""
        refused = self._send_or_split(batch)
        if 1 < len(batch) == len(refused) and any(math.isfinite(metric.value) for metric in batch):
            # Not one metric was good enough: more likely the run or the store is at fault. Keep them.
            raise refused[0][1]
        for metric, error in refused:
            what = metric.key if math.isfinite(metric.value) else "non-finite values"
            if what not in self._reported:
                self._reported.add(what)
                said = f"MLflow refuses {metric.key}={metric.value} at step {metric.step}, dropped"
                self._notify(f"{said} ({first_line(error)})")
        return len(batch) - len(refused)

    def _send_or_split(self, batch: "Sequence[Metric]") -> "list[tuple[Metric, Exception]]":
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes two seconds

        try:
            sent = self._client.log_batch(self._run_id, metrics=batch)
            if sent is not None:
                # MLFLOW_ENABLE_ASYNC_LOGGING: MLflow only promised to send them.
                sent.wait()  # type: ignore[no-untyped-call]
        except MlflowException as error:
            # A deleted run has the same code as a bad metric; only the message tells them apart.
            if error.error_code != "INVALID_PARAMETER_VALUE" or "'active' state" in str(error):
                raise
            if len(batch) == 1:
                return [(batch[0], error)]
            middle = len(batch) // 2
            return self._send_or_split(batch[:middle]) + self._send_or_split(batch[middle:])
        return []


def follow(
    journal: int,
    open_store: "Callable[[], MlflowClient]",
    run_id: str,
    notify: Callable[[str], None],
    ended: threading.Event,
) -> None:
    """Ships a journal as it grows; a store that does not answer is asked again until it does.

    The journal is given by its file descriptor. `ended` ends it; so does a journal that should begin anew.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes two seconds
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    shipper: Shipper | None = None
    reported: set[str] = set()
    is_down, recovered, since = False, 0, time.monotonic()
    while not ended.is_set():
        at = shipped(journal)
        waiting = os.fstat(journal).st_size - at
        if waiting <= 0:
            since = time.monotonic()
            if at >= LARGE:
                return
        is_due = waiting >= _READ_BYTES or time.monotonic() > since + _LINGER_S
        lines = _read(journal, at) if is_due else b""
        if not lines:
            ended.wait(_LOOK_S)
            continue
        records = records_of(lines.decode(), "journal")
        try:
            shipper = shipper or Shipper(open_store(), run_id, notify, reported)
            count = shipper.ship(records)
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            shipper = None
            if not is_down:
                is_down = True
                notify(f"MLflow does not answer ({first_line(error)}): training goes on, its metrics wait")
            ended.wait(_RETRY_S)
            continue
        recovered += count * is_down
        if is_down and len(lines) >= waiting:
            notify(f"MLflow answers again: {recovered} metrics delivered")
            is_down, recovered = False, 0
        since = time.monotonic()
        write_down(journal, at + len(lines))


def _read(journal: int, at: int) -> bytes:
    """Whole lines behind a position: at least one, if there is one."""
    most = _READ_BYTES
    while True:
        data = os.pread(journal, most, at)
        whole = data[: data.rfind(b"\n") + 1]
        if whole or len(data) < most:
            return whole
        most *= 2  # a record of a network with very many layers


def main() -> None:
    """Ships the journal whose descriptor, and whose run, are the arguments, until the input ends."""
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no notice
    journal, run_id, uri = int(sys.argv[1]), sys.argv[2], sys.stdin.readline().rstrip("\n")

    def end_with_input() -> None:
        while os.read(0, 1):
            pass
        os._exit(0)  # a request to a silent store may be under way

    threading.Thread(target=end_with_input, daemon=True).start()
    follow(
        journal, lambda: open_client(uri), run_id, lambda notice: print(notice, file=said), threading.Event()
    )


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the worker has ended
        main()
