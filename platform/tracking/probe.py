"""Checks whether a tracking store answers before MLflow is used, which would take minutes to give up."""

import errno
import http.client
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from ..deadline import NoAnswer, in_time
from ..spec import SpecError
from .masking import first_line, masked, without_login
from .store import open_client, sqlite_path, tracking_uri

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

VARIABLE = "MLFLOW_TRACKING_URI"
_ALIVE_S, _ANSWER_S = 2.0, 15.0
"""For a first sign, and for an answer of a store that has given one: it may be slow, on a busy machine."""
_ROOM = 2**20
_SQLITE = b"SQLite format 3\0"
_DATABASES = {"postgresql", "mysql", "mssql"}
"""Database servers that MLflow can use directly, by the beginning of their addresses."""
_OTHERS = {"http", "https", "sqlite", "file", "databricks", "databricks-uc", "uc"}
"""What else an address that MLflow can use begins with, if plugins add nothing."""
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)(?:\+[^:]*)?:")
_INSTALL = {"psycopg": "taugrad[postgres]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""The package that contains a module, if it has another name."""
_REFUSED = re.compile(r"\b40[13]\b|UNAUTHENTICATED|PERMISSION_DENIED")
_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


def answering_client(*, writes: bool = True) -> "MlflowClient":
    """A client of the tracking store, once the store has answered. `writes`: whether anything will be stored.

    Raises SpecError: the store cannot be used. A store that gives no sign of life is refused within 2 s.
    """
    uri = tracking_uri()
    probe(uri, writes=writes)
    import mlflow.tracking  # noqa: F401, PLC0415 - takes seconds, which are not the store's
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    def ask() -> "MlflowClient":
        client = open_client(uri)
        if not client.search_experiments(max_results=1):  # there is none, or what answers is no MLflow server
            with suppress(MlflowException):
                if not client.get_experiment("0").experiment_id:
                    raise ValueError("what answers there is no MLflow server")
        return client

    try:
        # A local database may have to be created or migrated first; nothing else can keep it from answering.
        return ask() if sqlite_path(uri) is not None else in_time(_ANSWER_S, ask)
    except Exception as error:
        # MLflow and its databases raise many types of errors; for the user they all mean this.
        raise _away(uri, _reason(error)) from None


def probe(uri: str, *, writes: bool = True) -> None:
    """Checks that a server answers, or that the folder of a local database can be written (if `writes`).

    Raises SpecError: the server does not answer, the folder cannot be written, or MLflow has no store of this
    scheme.
    """
    path = sqlite_path(uri)
    if path is not None:
        _check_folder(path, writes=writes)
    elif uri.startswith(("http://", "https://")):
        try:
            in_time(_ALIVE_S, lambda: _ask_server(uri))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _away(uri, _reason(error)) from None
    elif match := _SCHEME.match(uri):
        scheme = match["scheme"].lower()
        if scheme in _DATABASES:
            _check_database(uri)
        elif scheme not in _OTHERS | entry_points(group="mlflow.tracking_store").names:
            known = "http, https, sqlite, postgresql, mysql, mssql, file or databricks"
            raise _problem(f"{masked(uri)}: MLflow has no store {scheme}://; give an address of {known}")


def _check_database(uri: str) -> None:
    """Refuses a database server that accepts no connection; MLflow would try for minutes."""
    from sqlalchemy import create_engine  # noqa: PLC0415
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    try:
        in_time(_ALIVE_S, lambda: create_engine(uri, poolclass=NullPool).connect().close())
    except ImportError as error:
        install = _INSTALL.get(error.name or "", error.name)
        problem = f"needs {error.name}, which is not installed; pip install '{install}'"
        raise _problem(f"{masked(uri)} {problem}") from None
    except DBAPIError as error:
        raise _away(uri, _reason(error.orig or error)) from None
    except (OSError, ValueError, SQLAlchemyError) as error:
        raise _away(uri, _reason(error)) from None


def _ask_server(uri: str) -> None:
    """Accepts any answer of a working server; MLflow checks permissions itself."""
    try:
        urllib.request.urlopen(f"{without_login(uri).rstrip('/')}/health", timeout=2 * _ALIVE_S).close()
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # MLflow has its own settings for certificates
            raise


def _check_folder(path: Path, *, writes: bool) -> None:
    folder = path.absolute().parent
    if path.exists() and not _may_be_sqlite(path):  # MLflow would try for minutes
        raise _problem(f"{path} is no sqlite database{_default()}; move it away, or set {VARIABLE}")
    if not writes:
        if not path.exists():
            raise _problem(f"there is no {path}{_default()}; give the command where the runs were trained")
        return
    problem = unwritable(folder)
    if not problem and path.exists() and not os.access(path, os.W_OK):
        problem = os.strerror(errno.EACCES)
    if problem:
        what = "correct" if _is_set() else "change to a folder that can be written, or set"
        raise _problem(f"{path} cannot be written ({problem}){_default()}; {what} {VARIABLE}")


def _may_be_sqlite(path: Path) -> bool:
    """Whether a file is empty, as a new database may be, or begins as a database does."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) in (b"", _SQLITE)
    except OSError:  # what it cannot do is said elsewhere
        return True


def unwritable(folder: Path) -> str:
    """Why no file can be written in a folder, or in its nearest existing parent; empty if it can."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".taugrad-") as file:
            file.write(bytes(_ROOM))  # on a full disk, empty files can still be created
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def _away(uri: str, reason: str) -> SpecError:
    if _REFUSED.search(reason):
        return _problem(f"{masked(uri)} asks for a login ({reason}); {_LOGIN}")
    what = f"start it, or correct {VARIABLE}" if _is_set() else f"set {VARIABLE} to another store"
    return _problem(f"{masked(uri)} cannot be used: {reason}; {what}")


def _problem(text: str) -> SpecError:
    return SpecError(VARIABLE if _is_set() else "tracking store", text)


def _is_set() -> bool:
    return bool(os.environ.get(VARIABLE, "").strip())


def _default() -> str:
    return "" if _is_set() else f", the default, as {VARIABLE} is not set"


def _reason(error: BaseException) -> str:
    """An error in one line, without passwords."""
    if isinstance(error, NoAnswer):
        return str(error)
    if isinstance(error, urllib.error.HTTPError):
        return f"it answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, http.client.HTTPException):
        return "what answers there is not an HTTP server"
    return first_line(error)
