"""Checks without MLflow whether a local database has an experiment or a run.

MLflow takes seconds to import and to open a database. A mistyped name is found without that. MLflow has
always had these two tables; if they are not as expected, MLflow decides.
"""

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ..spec import COMMAND_LINE, SpecError
from ..terminal import printable
from .masking import masked
from .store import sqlite_path, tracking_uri


def check_experiment(name: str) -> None:
    """Refuses an experiment that is not in the local database.

    Raises:
        SpecError: there is no experiment of this name; the message lists those that exist.
    """
    rows = _select("SELECT name FROM experiments WHERE lifecycle_stage != 'deleted' ORDER BY name")
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
    if _select("SELECT run_uuid FROM runs WHERE run_uuid = ?", run_id) == []:
        raise no_run(run_id, tracking_uri())


def no_run(run_id: str, uri: str) -> SpecError:
    """The message about a run that does not exist."""
    return SpecError(COMMAND_LINE, [f"--resume {run_id}: no such run in {masked(uri)}"])


def _select(query: str, *values: str) -> list[tuple[str, ...]] | None:
    path = sqlite_path(tracking_uri())
    if path is None or not os.path.isfile(path):
        return None
    with contextlib.suppress(sqlite3.Error):
        read_only = f"{Path(path).absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(read_only, uri=True, timeout=2)) as connection:
            return connection.execute(query, values).fetchall()
    return None
