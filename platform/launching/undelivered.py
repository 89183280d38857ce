"""Keeps what MLflow does not take of a run, for `taugrad deliver`."""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..tracking.journal import MetricsJournal
from ..tracking.masking import masked
from ..tracking.record import UNDELIVERED, Record, Status, records_of
from ..tracking.run_lock import RunLock
from ..tracking.store import finish_run
from .run_folder import RunFolder, fallback, keep_text, text_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_DELIVERY_S = 30.0


def close_journal(journal: MetricsJournal, folder: RunFolder, notify: Callable[[str], object]) -> None:
    """Delivers what is left; what cannot be delivered goes to a file in the run's folder."""
    text = "".join(journal.close(_DELIVERY_S))
    if not text:
        return
    count = sum(len(record.metrics) for record in records_of(text, UNDELIVERED))
    problem = f"MLflow did not take {count} metrics"
    try:
        place = keep_text(folder, UNDELIVERED, text)
    except OSError as error:  # nothing is left but to say so
        notify(f"{problem}, and they could not be kept: {error}")
        return
    notify(f"{problem}; they are in {place}. When it answers again: taugrad deliver {shlex.quote(place)}")


def end_in_store(
    client: "MlflowClient", run_id: str, status: Status, folder: RunFolder, lock: RunLock | None = None
) -> list[str]:
    """Says in the store how a run ended, or else in a file; what the user should know about that.

    A run whose `lock` another process has taken over is left alone.
    """
    try:
        if lock is not None and not lock.is_ours():
            return [f"another process has taken run {run_id} over: how it ended here is not recorded"]
        finish_run(client, run_id, status)
        return []
    except Exception as error:
        notice = f"MLflow does not answer ({masked(str(error))}): run {run_id} stays marked as running"
    end = Record.now(ended=status, run=run_id).to_line()
    try:
        try:
            place = keep_text(folder, UNDELIVERED, text_of(folder, UNDELIVERED) + end)
        except OSError:  # metrics that may wait there, unread, must not be replaced
            place = fallback(run_id).keep_text(UNDELIVERED, end)
    except OSError as error:
        return [f"{notice}, and that cannot be kept: {error}"]
    return [f"{notice} until you say, when it answers again: taugrad deliver {shlex.quote(str(place))}"]
