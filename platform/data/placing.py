"""Paths of a spec, which refer to the folder where the command was given.

Ray's workers and trials have other working directories. Our own Ray hands them that folder in an environment
variable; on a cluster, which has other disks, paths are what they are there.
"""

import os
from pathlib import Path
from typing import TypeVar

from ..config import Config

FOLDER = "TAUGRAD_WORKING_FOLDER"
Placed = TypeVar("Placed", bound=Config)


def enter_folder() -> None:
    """Goes to that folder, where it is known, for good: a user's own function may open files at any time."""
    folder = os.environ.get(FOLDER)
    if folder:
        os.chdir(folder)


def placed(config: Placed) -> Placed:
    """A data config whose paths are absolute, where it is known what they refer to."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return config
    places: dict[str, object] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Path):
            places[name] = Path(folder, value)
        elif name == "path" and isinstance(value, str):
            places[name] = os.path.join(folder, Path(value).expanduser())
        elif name == "path" and isinstance(value, tuple):
            places[name] = tuple(os.path.join(folder, Path(path).expanduser()) for path in value)
    return config.model_copy(update=places) if places else config
