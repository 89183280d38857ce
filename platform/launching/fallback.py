"""A place on this machine for what a run's own storage does not take: nothing is lost with it.

`~/.taugrad/not-stored/RUN` is a run's folder, too: it has texts under their own names, and of the newest
checkpoint that could not be stored the files that this machine's workers wrote.
"""

from pathlib import Path

from ..deadline import in_time
from .run_folder import RunFolder
from .storage import reason

_STORE_S = 30.0
"""A bucket that is silent may take so long for a text."""


def fallback(run_id: str) -> RunFolder:
    """Where this machine keeps what a run's storage did not take."""
    return RunFolder.at(str(Path.home() / ".taugrad" / "not-stored"), run_id)


def keep_text(folder: RunFolder, name: str, text: str) -> str:
    """Writes a text into a run's folder, or, where that fails, into this machine's; returns where it is.

    Raises OSError: neither could be written.
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
