"""Reads a local database without MLflow: whether it has an experiment or a run, and histories of metrics.

MLflow takes seconds to import and to open a database. A mistyped name is found without that. Its client
returns one history of one run at a time; here all of them are one query. MLflow has always had these three
tables; if they are not as expected, MLflow decides.
"""

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..spec import COMMAND_LINE, SpecError
from ..terminal import printable
from .masking import masked
from .store import sqlite_path, tracking_uri


def check_experiment(name: str) -> None:
    """Refuses an experiment that is not in the local database.

    Raises:
        SpecError: there is no experiment of this name; the message lists those that exist.
    """
    rows = _select(
        tracking_uri(), "SELECT name FROM experiments WHERE lifecycle_stage != 'deleted' ORDER BY name"
    )
    if rows is not None and (name,) not in rows:
        raise no_experiment(name, [row[0] for row in rows], tracking_uri())


def no_experiment(name: str, others: Sequence[str], uri: str) -> SpecError:
    """The message about an experiment that does not exist."""
    there = ", ".join(map(printable, others)) if others else "none"
    return SpecError(COMMAND_LINE, [f"EXPERIMENT {name!r}: not in {masked(uri)}; there is: {there}"])


def check_run(run_id: str) -> None:
    """Refuses a run that is not in the local database.

    Raises:
        SpecError: there is no run with this id.
    """
    if _select(tracking_uri(), "SELECT run_uuid FROM runs WHERE run_uuid = ?", run_id) == []:
        raise no_run(run_id, tracking_uri())


def no_run(run_id: str, uri: str) -> SpecError:
    """The message about a run that does not exist."""
    return SpecError(COMMAND_LINE, [f"--resume {run_id}: no such run in {masked(uri)}"])


def read_histories(
    uri: str, wanted: Mapping[str, Iterable[str]]
) -> dict[tuple[str, str], list[tuple[int, float]]] | None:
    """Every value of some metrics of some runs.

    Args:
        uri: of the store.
        wanted: by run id, the names of metrics.

    Returns:
        By run id and metric, step and value in the order of their timestamps; None if the store is not a
        local database, or not as expected.
    """
    pairs = json.dumps([(run_id, metric) for run_id, metrics in wanted.items() for metric in metrics])
    rows = _select(
        uri,
        # CROSS JOIN: SQLite then looks up each pair in its index, and does not read the whole table.
        "SELECT m.run_uuid, m.key, m.step, CASE WHEN m.is_nan THEN NULL ELSE m.value END "
        "FROM json_each(?) AS pair CROSS JOIN metrics AS m "
        "ON m.run_uuid = json_extract(pair.value, '$[0]') AND m.key = json_extract(pair.value, '$[1]') "
        "ORDER BY m.timestamp",
        pairs,
    )
    if rows is None:
        return None
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for run_id, metric, step, value in rows:
        found.setdefault((run_id, metric), []).append((step, math.nan if value is None else value))
    return found


def _select(uri: str, query: str, *values: str) -> list[tuple[Any, ...]] | None:
    path = sqlite_path(uri)
    if path is None or not os.path.isfile(path):
        return None
    with contextlib.suppress(sqlite3.Error):
        read_only = f"{Path(path).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(read_only, uri=True, timeout=2)) as connection:
            return connection.execute(query, values).fetchall()
    return None
