"""Where things lie: to which folder relative paths refer, and how workers, which have others, get them."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from .config import Config

RUNS: Final = "taugrad-runs"
"""The folder of figures and searches, and of checkpoints unless a spec's `storage` names another."""
FOLDER = "TAUGRAD_WORKING_FOLDER"
"""The environment variable that tells the processes of our own Ray in which folder the command was given."""
_VARIABLES = (
    "TAUGRAD_KEY_FILE",
    "RAY_AUTH_TOKEN_PATH",
    "XDG_CACHE_HOME",
    "NUMBA_CACHE_DIR",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)
"""Environment variables that name a file or a folder for workers."""
_SCHEME = re.compile(r":/+")

_OUTPUT = "output"
OutputPath = Annotated[Path, _OUTPUT]
OutputAddress = Annotated[str, _OUTPUT]
"""A folder to write, or a bucket's address. A relative one refers to `home`, other paths to the folder of the
command."""
Placed = TypeVar("Placed", bound=Config)


def is_job_folder(folder: Path) -> bool:
    """Whether it is the working directory of a Ray job, which Ray deletes."""
    return {"runtime_resources", "working_dir_files"} <= set(folder.parts)


def in_job() -> bool:
    """Whether this process is the command of a Ray job."""
    return is_job_folder(Path.cwd())


def home(folder: Path | None = None) -> Path:
    """The folder that relative output paths refer to, of a command that was given in `folder`.

    It is that folder, by default the current one; in a Ray job `~/.taugrad`.
    """
    folder = folder or Path.cwd()
    if not is_job_folder(folder):
        return folder
    kept = Path.home() / ".taugrad"
    kept.mkdir(parents=True, exist_ok=True)
    return kept


def output_folder(folder: Path) -> Path:
    """Makes a folder for what runs write; git and Ray, which uploads a job's folder, leave its contents out.

    In a folder that exists already nothing is changed, unless its name says that it is for runs only.
    """
    with suppress(OSError):  # where nothing can be written, what needs to write says so
        if not folder.exists() or folder.name == RUNS:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / ".gitignore").open("x", encoding="utf-8") as file:
                file.write("*\n")
    return folder


def is_bucket(place: str) -> bool:
    """Whether it is the address of a bucket, and no path."""
    return "://" in place


def address_of(path: Path | str, folder: Path | None = None) -> str:
    """An output path as Ray and fsspec take it: absolute, or a bucket's address, which a Path has shortened.

    `folder` is where the command was given, by default the current one.
    """
    text = str(path)
    if text.startswith("file:/"):
        return f"/{text.removeprefix('file:').lstrip('/')}"
    if ":/" in text:
        return _SCHEME.sub("://", text)
    return str(home(folder) / Path(text).expanduser())


def placed(config: Placed, folder: Path | None = None) -> Placed:
    """A spec, or a part of one, with absolute paths only, as workers and trials need it.

    `folder` is where the command was given, by default the current one.
    """
    changes: dict[str, object] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        other = _placed(value, folder or Path.cwd(), output=_OUTPUT in field.metadata)
        if other is not value:
            changes[name] = other
    return config.model_copy(update=changes) if changes else config


def _placed(value: Any, folder: Path, *, output: bool) -> Any:
    if isinstance(value, Config):
        return placed(value, folder)
    if isinstance(value, tuple) and any(isinstance(item, Path) for item in value):
        return tuple(_placed(item, folder, output=output) for item in value)
    if output and str(value):
        return type(value)(address_of(value, folder))
    return folder / value.expanduser() if isinstance(value, Path) else value


def absolute_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with relative paths in them, as processes in other folders need them.

    PYTHONPATH begins with the current folder: a user's own modules are found there.
    """
    here = Path.cwd()
    changes = {
        name: str(here / Path(text).expanduser())
        for name in _VARIABLES
        if (text := environment.get(name, "")) and not os.path.isabs(text)
    }
    given = environment.get("PYTHONPATH", "")
    folders = [str(here / folder) for folder in given.split(os.pathsep) if folder]
    changes["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(here), *folders]))
    return changes


def enter_folder() -> None:
    """Changes to the folder of the command, where it is known: a user's function may open files any time."""
    folder = os.environ.get(FOLDER)
    if folder:
        os.chdir(folder)
