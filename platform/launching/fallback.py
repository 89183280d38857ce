"""A place on this machine for what a run's own storage does not take: nothing is lost with it.

`~/.taugrad/not-stored/RUN` is a run's folder, too: it has texts under their own names, and the files that
this machine's workers wrote of the newest checkpoint that could not be stored.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from ..deadline import in_time
from ..training.manifest import FILE, Manifest, folder_name
from .run_folder import RunFolder
from .storage import reason

_STORE_S = 30.0
"""A bucket that is silent may take so long for a text."""


def fallback(run_id: str) -> RunFolder:
    """Where this machine keeps what a run's storage did not take."""
    return RunFolder.at(str(Path.home() / ".taugrad" / "not-stored"), run_id)


def keep_text(folder: RunFolder, name: str, text: str) -> str:
    """Writes a text into a run's folder, or, where that fails, into this machine's.

    Returns:
        Where it is.

    Raises:
        OSError: neither could be written.
    """
    try:
        return in_time(_STORE_S, lambda: folder.keep_text(name, text))
    except Exception as error:  # buckets raise many types
        place = fallback(folder.run_id)
        try:
            return place.keep_text(name, text)
        except OSError as second:
            raise OSError(f"{folder.address}: {reason(error)}; {place.address}: {reason(second)}") from error


def text_of(folder: RunFolder, name: str) -> str:
    """A text where `keep_text` has put it; empty where there is none."""
    try:
        return fallback(folder.run_id).text(name) or in_time(_STORE_S, lambda: folder.text(name))
    except Exception:  # the storage is away: nothing was put there
        return ""


def fallback_checkpoint(manifest: Manifest) -> Path:
    """The folder that workers of one machine have together for a checkpoint that is not stored."""
    return _folder(manifest.run) / folder_name(manifest.iteration)


def keep_checkpoint(files: Path, manifest: Manifest) -> None:
    """Keeps the files of a worker of this machine, and the manifest, in place of those kept before.

    Args:
        files: the folder that has the worker's files.
        manifest: of the whole checkpoint.

    Raises:
        OSError: they cannot be written.
    """
    place = fallback_checkpoint(manifest)
    place.mkdir(parents=True, exist_ok=True)
    for path in files.iterdir():
        shutil.copyfile(path, place / path.name)
    (place / FILE).write_bytes(manifest.to_bytes())
    forget_checkpoints(manifest.run, manifest.iteration)


def forget_checkpoints(run_id: str, before: int) -> None:
    """Removes what was kept of earlier checkpoints: a later one is stored, or kept."""
    kept = _folder(run_id)
    for path in kept.glob("iteration_*"):
        if path.name < folder_name(before):
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # there was nothing, or something else is there
        kept.rmdir()


def _folder(run_id: str) -> Path:
    place = fallback(run_id).local
    assert place is not None
    return place
