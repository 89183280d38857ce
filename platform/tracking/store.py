"""Where runs are stored: the tracking store, its experiments, and the start and end of a run.

By default, runs go to `mlflow.db` in the working directory, and their artifacts to `mlruns` beside it.
`MLFLOW_TRACKING_URI` names another database or a server.
"""

import contextlib
import fcntl
import getpass
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote, urlparse

from ..deadline import NoAnswer, in_time
from ..places import home, in_job, output_folder
from . import names
from .local_database import ARTIFACTS, follow
from .masking import masked
from .record import Status

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from ..spec import RunSpec

MAX_PARAM_LENGTH = 6000
"""Number of characters of a param's value that MLflow keeps."""
MAX_PARAMS_PER_BATCH = 100
"""Number of params that MLflow accepts in one request."""

_GIT_TIMEOUT_S = 5
_SQLITE = re.compile(r"sqlite(?:\+\w+)?:///(?P<path>[^?]+)(?P<query>\?.*)?")
_LOCK_S = 60.0  # a fresh database's migrations take 10 s on a busy machine
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""MLflow's own defaults are 7 attempts of 120 s for a request. A user's settings win."""
_NOISY_LOGGERS = ("mlflow.store.db.utils", "alembic")
"""They tell of a new database's migrations; warnings are still shown."""


class TrackingError(RuntimeError):
    """The tracking store cannot be used as asked; the message says what to do."""


def tracking_uri() -> str:
    """Where runs are tracked: `MLFLOW_TRACKING_URI` if it is set, otherwise `mlflow.db`.

    A relative sqlite path is made absolute, because workers have another working directory. `mlflow.db` is in
    the working directory, or in `~/.taugrad` for Ray jobs, because Ray deletes the working directory of its
    jobs.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not uri:
        return _sqlite_uri(home() / "mlflow.db")
    match = _SQLITE.fullmatch(uri)
    path = sqlite_path(uri)
    if match is None or path is None or path.is_absolute():
        return uri
    return _sqlite_uri(home() / path) + (match["query"] or "")


def open_client(uri: str | None = None) -> "MlflowClient":
    """An MLflow client of a store, by default `tracking_uri()`; a local database is made if it is missing.

    Safe when several processes do so at once. MLflow's own lock is not enough: of three processes that
    opened a fresh sqlite file together, two failed in its migrations.
    """
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - takes two seconds

    uri = tracking_uri() if uri is None else uri
    path = sqlite_path(uri)
    if path is None:
        return MlflowClient(tracking_uri=uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    with _locked(path):
        if path.exists():
            follow(path)
        else:
            # MLflow puts the working directory into its first statement as it is, whatever quotes it has.
            from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # noqa: PLC0415

            artifacts = (path.absolute().parent / ARTIFACTS).as_uri()
            SqlAlchemyStore(uri, artifacts)  # type: ignore[no-untyped-call]
        return MlflowClient(tracking_uri=uri)


def open_experiment(client: "MlflowClient", name: str) -> str:
    """The id of an experiment, which is created if it is missing; several processes may do so at once.

    Artifacts of a local database are stored beside it, whatever the working directory is. A server decides
    itself where they go. Raises TrackingError: the experiment was deleted.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes two seconds

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=_artifacts(client, name)))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        # Another process was faster.
        experiment = client.get_experiment_by_name(name)
    if experiment is None:
        raise TrackingError(f"the experiment {name!r} vanished while it was being opened; try again")
    if experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            f"the experiment {name!r} was deleted; bring it back with "
            f"`MLFLOW_TRACKING_URI={shlex.quote(masked(client.tracking_uri))} mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}`, or choose another name"
        )
    return str(experiment.experiment_id)


def keep_spec(client: "MlflowClient", run_id: str, spec: "RunSpec") -> None:
    """Stores the spec as the artifact `spec.yaml`, from which the run can be continued."""
    from ..spec.yaml_file import dump_yaml  # noqa: PLC0415 - has all of a spec's models, for who writes one

    client.log_text(run_id, dump_yaml(spec.model_dump(mode="json")), "spec.yaml")


def start_run(client: "MlflowClient", spec: "RunSpec", *, tags: Mapping[str, str] | None = None) -> str:
    """Creates a run with its params, its tags and its spec as the artifact `spec.yaml`; returns its id.

    The run is in the state RUNNING. Further tags may be given, such as `mlflow.parentRunId` for a trial of a
    search. Raises TrackingError: the spec's experiment was deleted.
    """
    from mlflow.entities import Param  # noqa: PLC0415 - takes two seconds

    experiment = open_experiment(client, spec.experiment)
    run = client.create_run(experiment, tags=_tags(spec) | dict(tags or {}), run_name=spec.title)
    run_id = str(run.info.run_id)
    try:
        by_name = {names.param(field): value for field, value in spec.flat().items()}
        params = [Param(name, value[:MAX_PARAM_LENGTH]) for name, value in by_name.items()]
        for start in range(0, len(params), MAX_PARAMS_PER_BATCH):
            client.log_batch(run_id, params=params[start : start + MAX_PARAMS_PER_BATCH])
        keep_spec(client, run_id, spec)
    except BaseException:
        # A run that never started must not look as if it were running.
        with contextlib.suppress(Exception):
            finish_run(client, run_id, "FAILED")
        raise
    return run_id


def finish_run(client: "MlflowClient", run_id: str, status: Status) -> None:
    """Ends a run, in a status."""
    client.set_terminated(run_id, status=status)


def to_copy(command: str, uri: str) -> str:
    """A command as it is shown to people: with the program's path, where their shell does not find it.

    For a job it names the store, which is not in a folder of theirs.

    Args:
        command: as it would be given here.
        uri: the tracking store. If it contains a password, it is left out, and people have to set it.
    """
    program = Path(sys.argv[0])
    if program.name == "taugrad" and not in_job() and shutil.which("taugrad") is None:
        return re.sub(r"(?<![^ ])taugrad(?= \w)", shlex.quote(os.path.relpath(program)), command)
    if not in_job() or urlparse(uri).password:
        return command
    return f"MLFLOW_TRACKING_URI={shlex.quote(uri)} {command}"


def _sqlite_uri(path: Path) -> str:
    # SQLAlchemy unquotes the path, and a question mark would begin the options.
    return f"sqlite:///{str(path.absolute()).replace('%', '%25').replace('?', '%3F')}"


def sqlite_path(uri: str) -> Path | None:
    """The file of a sqlite URI; None for servers, other databases and databases in memory."""
    match = _SQLITE.fullmatch(uri)
    if match is None or match["path"] == ":memory:":
        return None
    return Path(unquote(match["path"]))


def _artifacts(client: "MlflowClient", name: str) -> str | None:
    path = sqlite_path(client.tracking_uri)
    if path is None:
        return None
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "experiment"
    return (output_folder(path.absolute().parent / ARTIFACTS) / slug).as_uri()


def _tags(spec: "RunSpec") -> dict[str, str]:
    from ..tasks.counting import counting_metric  # noqa: PLC0415 - has models, too

    tags = {
        **who_and_what(),
        "mlflow.runName": spec.title,
        names.TAG_SPEC_HASH: spec.fingerprint(),
        names.TAG_CHAIN: str(spec.compressor),
        names.TAG_METRIC: counting_metric(spec).to_json(),
    }
    if spec.paper:
        tags[names.TAG_PAPER] = spec.paper
    commit = _git_commit()
    if commit:
        tags[names.TAG_GIT_COMMIT] = commit
    return tags


def who_and_what() -> dict[str, str]:
    """MLflow's tags for who started a run, and with what."""
    tags = {"mlflow.source.name": "taugrad"}
    with contextlib.suppress(KeyError, OSError, ImportError):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    return tags


def _git_commit() -> str | None:
    """The commit of the working directory's repository, if it is in one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process or thread at a time open the databases of a folder.

    The folder itself is locked, so there is no lock file that another user could create first, or that
    remains. Everybody who can read the folder can hold the lock, so nobody waits for it forever. Without it,
    as on file systems that cannot lock folders, MLflow's own lock must do.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            deadline = time.monotonic() + _LOCK_S
            while not _locks(folder) and time.monotonic() < deadline:
                time.sleep(0.05)
        yield


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


T = TypeVar("T")

LOST_S = 20.0
"""Seconds in total that a store without answers may cost a command. After that, it is not asked any more."""
_AGAIN_S = 60.0
"""Seconds after which it is asked once more: it may be back for the next run."""
_ONCE_S = 5.0


class RetryBudget:
    """Lets calls fail for a number of seconds in total; a call that succeeds restores them."""

    def __init__(self, seconds: float = LOST_S) -> None:
        self._seconds = self._left = seconds
        self._again = 0.0

    def __call__(self, ask: Callable[[], T]) -> T:
        """Calls a function; raises NoAnswer: it takes longer than what is left, or nothing is left."""
        begun = time.monotonic()
        if self._left <= 0 and begun < self._again:
            raise NoAnswer(f"it has not answered for {self._seconds:.0f} s")
        try:
            answer = in_time(self._left if self._left > 0 else _ONCE_S, ask)
        except Exception:
            self._left -= time.monotonic() - begun
            self._again = time.monotonic() + _AGAIN_S
            raise
        self._left = self._seconds
        return answer


def with_timeout(client: "MlflowClient") -> "MlflowClient":
    """The client, with calls that together wait at most `LOST_S` for a store that is away.

    A local database does not go away. Users can set a longer MLFLOW_HTTP_REQUEST_TIMEOUT for single requests.
    """
    if sqlite_path(client.tracking_uri) is not None:
        return client
    granted = os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT", "")
    return cast(
        "MlflowClient", _TimedClient(client, max(LOST_S, float(granted) if granted.isdecimal() else 0))
    )


def without_timeout(client: "MlflowClient") -> "MlflowClient":
    """The client inside one with a timeout, for a thread whose waiting is not counted."""
    return client._client if isinstance(client, _TimedClient) else client


class _TimedClient:
    def __init__(self, client: "MlflowClient", seconds: float) -> None:
        self._client, self._budget = client, RetryBudget(seconds)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not callable(attribute):
            return attribute
        return lambda *arguments, **named: self._budget(lambda: attribute(*arguments, **named))
