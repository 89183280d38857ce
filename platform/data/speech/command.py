"""`taugrad data speech`: speaks, and says how far it is."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ...exit_codes import OK
from ...spec import COMMAND_LINE, SpecError
from ...terminal import say
from ..frames_folder import is_made
from .espeak import SpeechError, loaded, version_of
from .making import make, settings

MOST_MINUTES = 6000.0
"""A hundred hours: a part's features lie in memory until they are written."""


def run_speech(minutes: float, folder: Path, seed: int) -> int:
    """Makes a folder of spoken frames, unless it is there already.

    Args:
        minutes: of speech, in all parts together.
        folder: where to; must not be there, be empty, or hold what the same settings made.
        seed: what texts, voices, speeds and pitches follow from.

    Returns:
        0.

    Raises:
        SpecError: the minutes or the seed are out of range, the folder holds something else or cannot be
            written, or espeak-ng is missing or failed.
    """
    if not 0 < minutes <= MOST_MINUTES:
        raise _wrong(f"--minutes {minutes:g}: give more than 0, up to {MOST_MINUTES:g}")
    if seed < 0:
        raise _wrong(f"--seed {seed}: give 0 or more")
    console = Console()
    try:
        espeak = version_of(loaded())
        if folder.exists() and not folder.is_dir():
            raise _wrong(f"--out {folder}: is a file; give a folder")
        if folder.is_dir() and any(folder.iterdir()):
            if not is_made(folder, settings(minutes, seed, espeak)):
                raise _wrong(
                    f"--out {folder}: is not empty, and is incomplete or has other settings; "
                    "give another folder"
                )
            say(console, f"{folder}: exists already, with these settings")
            return OK
        start = time.monotonic()
        columns = (
            TextColumn("speaking"),
            BarColumn(),
            TextColumn("{task.completed:.1f} of {task.total:g} min"),
        )
        with Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        ) as progress:
            bar = progress.add_task("", total=minutes)
            make(folder, minutes, seed, espeak, lambda done: progress.update(bar, completed=done))
    except SpeechError as error:
        raise _wrong(str(error)) from error
    except OSError as error:
        raise _wrong(f"--out {folder}: {error.strerror or error}") from error
    say(
        console,
        f"{folder}: {minutes:g} minutes in {time.monotonic() - start:.0f} s; "
        f"data: {{kind: frames, path: {folder}}}",
    )
    return OK


def _wrong(problem: str) -> SpecError:
    return SpecError(COMMAND_LINE, [problem])
