"""Reads histories of metrics from a local database, all of them in one query.

MLflow's client returns one of one run at a time. MLflow has always had this table; if it is not as expected,
MLflow is asked.
"""

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from taugrad.platform.tracking.store import sqlite_path


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
    path = sqlite_path(uri)
    if path is None or not os.path.isfile(path):
        return None
    # CROSS JOIN: SQLite then looks up each pair in its index, and does not read the whole table.
    query = (
        "SELECT m.run_uuid, m.key, m.step, CASE WHEN m.is_nan THEN NULL ELSE m.value END "
        "FROM json_each(?) AS pair CROSS JOIN metrics AS m "
        "ON m.run_uuid = json_extract(pair.value, '$[0]') AND m.key = json_extract(pair.value, '$[1]') "
        "ORDER BY m.timestamp"
    )
    read_only = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(read_only, uri=True, timeout=2)) as connection:
            rows = connection.execute(query, [pairs]).fetchall()
    except sqlite3.Error:
        return None
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for run_id, metric, step, value in rows:
        found.setdefault((run_id, metric), []).append((step, math.nan if value is None else value))
    return found
