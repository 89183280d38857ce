"""A local database whose folder was moved or copied, and where the files of its experiments are.

MLflow writes absolute paths into its databases. Artifacts, checkpoints and published weights that lie beside
the database are found there again.
"""

import logging
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

from . import names

ARTIFACTS = "mlruns"
"""The folder of artifacts beside a local database."""
_OF_A_SERVER = "mlflow-artifacts:"
log = logging.getLogger("taugrad")


def locations(database: Path) -> dict[str, str]:
    """Where the artifacts of each experiment go, by its name; empty where the file is no MLflow database."""
    with suppress(sqlite3.Error), closing(_opened(database, "ro")) as connection:
        rows = connection.execute("SELECT name, artifact_location FROM experiments")
        return {str(name): str(location) for name, location in rows}
    return {}


def served_only(database: Path, uri: str) -> dict[str, tuple[str, str]]:
    """The experiments whose artifacts only a server reaches: by name what is wrong, and what to do."""
    problem = "it was made through a server, which alone can store its artifacts ({}), and runs go to {}"
    remedy = f"set MLFLOW_TRACKING_URI to the server's address (mlflow server --backend-store-uri {uri} "
    remedy += "starts one), or choose another --experiment"
    return {
        name: (problem.format(place, uri), remedy)
        for name, place in locations(database).items()
        if place.startswith(_OF_A_SERVER)
    }


def follow(database: Path) -> None:
    """Corrects the paths in a database whose folder is no longer where they say, if the files are beside it.

    Says so as a warning. Where the database cannot be written, its paths stay.
    """
    here = database.absolute().parent
    for former in sorted({_former(place) for place in locations(database).values()} - {None, here}, key=str):
        assert former is not None
        if _has_moved(former, here, database):
            try:
                _rewrite(database, former, here)
            except sqlite3.Error as error:
                log.warning("%s names files in %s, and cannot be corrected: %s", database, former, error)
            else:
                log.warning("%s was in %s: its runs' files are those beside it now", database.name, former)


def _former(location: str) -> Path | None:
    """The folder of the database when an experiment got its location beside it; None for other locations."""
    address = urlparse(location)
    folder = Path(unquote(address.path))
    if address.scheme not in ("", "file") or folder.parent.name != ARTIFACTS or not folder.is_absolute():
        return None
    return folder.parent.parent


def _has_moved(former: Path, here: Path, database: Path) -> bool:
    """Whether files that should be in a former folder lie here, which is another one."""
    if former.exists() and os.path.samefile(former, here):
        return False
    places = [Path(unquote(urlparse(place).path)) for place in locations(database).values()]
    theirs = [place for place in places if place.is_relative_to(former)]
    return any((here / place.relative_to(former)).exists() for place in theirs)


def _rewrite(database: Path, former: Path, here: Path) -> None:
    addresses, paths = (former.as_uri(), here.as_uri()), (str(former), str(here))
    with closing(_opened(database, "rw")) as connection, connection:
        for table, column, (old, new), only in (
            ("experiments", "artifact_location", addresses, "TRUE"),
            ("runs", "artifact_uri", addresses, "TRUE"),
            ("tags", "value", paths, f"key IN ('{names.TAG_CHECKPOINTS}', '{names.TAG_PUBLISHED}')"),
        ):
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE {only} AND substr({column}, 1, ?) = ?",
                (new, len(old) + 1, len(old) + 1, f"{old}/"),
            )


def _opened(database: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode={mode}", uri=True, timeout=30)
