"""Histories of metrics: read from the tracking store, and thinned to what a figure can show."""

import contextlib
import json
import math
import os
import sqlite3
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taugrad.platform.tracking.store import sqlite_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

History: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Steps, ascending, and the value at each."""

MOST_POINTS = 2000
"""More than a figure has pixels across."""


def histories(client: "MlflowClient", metrics: Mapping[str, Iterable[str]]) -> dict[str, dict[str, History]]:
    """Histories of metrics, sorted by step; metrics without a value are left out.

    Args:
        client: The tracking store; a local database is queried once for all, others once for each metric.
        metrics: By run id, the names of metrics.

    Returns:
        By run id and metric.
    """
    pairs = [(run_id, name) for run_id, run_metrics in metrics.items() for name in run_metrics]
    points = _local_points(client.tracking_uri, pairs)
    if points is None:
        points = {
            (run_id, name): [(point.step, point.value) for point in client.get_metric_history(run_id, name)]
            for run_id, name in pairs
        }
    read: dict[str, dict[str, History]] = {run_id: {} for run_id in metrics}
    for (run_id, name), values in points.items():
        if values:
            read[run_id][name] = _history(values)
    return read


def _local_points(
    uri: str, pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], list[tuple[int, float]]] | None:
    """Steps and values by run id and metric, in the order of their timestamps, in one query.

    MLflow's client returns one metric of one run at a time. None if the store is not a local database, or its
    table, which MLflow has always had, is not as expected: MLflow is asked then.
    """
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
            rows = connection.execute(query, [json.dumps(pairs)]).fetchall()
    except sqlite3.Error:
        return None
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for run_id, metric, step, value in rows:
        points.setdefault((run_id, metric), []).append((step, math.nan if value is None else value))
    return points


def _history(points: Sequence[tuple[int, float]]) -> History:
    steps = np.array([step for step, _ in points], dtype=np.int64)
    values = np.array([unclamped(value) for _, value in points], dtype=np.float64)
    # Stable: two values at one step keep the order of their timestamps, in which they are returned.
    order = np.argsort(steps, kind="stable")
    return steps[order], values[order]


def unclamped(value: float) -> float:
    """A metric's value; MLflow's databases keep an infinity as the largest float."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else float(value)


def thinned(history: History, most: int = MOST_POINTS) -> History:
    """Downsamples a history to at most `most` points (4 or more) so that it looks the same when it is drawn.

    Steps are cut into equal intervals, each of which keeps its smallest and its largest value. The first and
    the last point stay; a history that is short enough is returned as it is.

    Raises:
        ValueError: `most` is below 4.
    """
    if most < 4:
        raise ValueError(f"most is {most}, not at least 4")
    steps, values = history
    count = len(values)
    if count <= most:
        return history
    edges = np.linspace(0, count, (most - 2) // 2 + 1).astype(np.int64)
    filled = np.where(np.isnan(values), -np.inf, values)
    keep = {0, count - 1}
    for begin, end in pairwise(edges.tolist()):
        keep.add(begin + int(np.argmax(filled[begin:end])))
        keep.add(begin + int(np.argmin(values[begin:end])))
    kept = np.array(sorted(keep))
    return steps[kept], values[kept]


def over_rounds(history: History) -> History:
    """Means over the steps from one exchange to the next, at the step of the exchange.

    Local steps exchange every few steps and send nothing between: their values would be a barcode. A history
    whose steps mostly send something is returned as it is.
    """
    steps, values = history
    sent = np.flatnonzero(values != 0)
    if len(sent) < 2 or (every := int(np.median(np.diff(sent)))) < 2:
        return history
    ends = np.arange(len(values) % every, len(values) + 1, every)[1:]
    if not len(ends):
        return history
    means = values[ends[0] - every : ends[-1]].reshape(-1, every).mean(axis=1)
    return steps[ends - 1], means


def bucket_medians(history: History, most: int) -> History:
    """Downsamples a noisy history to the medians of `most` equal intervals of steps, at their middle steps.

    NaN are left out of the medians; a history that is short enough is returned as it is.
    """
    steps, values = history
    if len(values) <= most:
        return history
    edges = np.linspace(0, len(values), most + 1).astype(np.int64)
    medians: NDArray[np.float64] = np.array([_median(values[a:b]) for a, b in pairwise(edges)])
    return steps[(edges[:-1] + edges[1:] - 1) // 2], medians


def _median(values: NDArray[np.float64]) -> float:
    numbers = values[~np.isnan(values)]
    return float(np.median(numbers)) if numbers.size else math.nan
