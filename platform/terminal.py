"""What every command prints through: one width, text as it is and nothing else, paths as seen from here."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

SOON_S = 3.0
"""After so long a log is told what is waited for."""
SILENT_S = 20.0
"""After so long a log gets a line, even if there is no news; 30 s of silence look as if a command hung."""

_LOG_WIDTH = 132
"""A log file has no width of its own; 80 columns would break the tables."""


def open_console() -> "Console":
    """Standard output: a terminal as wide as it is, anything else wide enough for tables."""
    from rich.console import Console  # noqa: PLC0415 - a command that only refuses its input needs none

    console = Console()
    return console if console.is_terminal else Console(width=_LOG_WIDTH)


def say(console: "Console", text: str, style: str = "") -> None:
    """Prints text as it is: no markup, and nothing that could be copied is broken in two."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def going_on(console: "Console", what: str) -> Iterator[None]:
    """Shows that something goes on: on a terminal at once, in a log after `SOON_S`, and every `SILENT_S`."""
    ended = threading.Event()

    def tell() -> None:
        pause = SOON_S
        while not ended.wait(pause):
            say(console, f"{what} {chr(0x2026)}")
            pause = SILENT_S

    telling = threading.Thread(target=tell, name="taugrad-going-on", daemon=True)
    with console.status(f"{what} {chr(0x2026)}"):
        if not console.is_terminal:
            telling.start()
        try:
            yield
        finally:
            ended.set()


def short(path: Path) -> str:
    """A path as seen from here: relative where it lies in this folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def printable(text: str) -> str:
    """A text on one line, without what steers a terminal or turns the direction of letters around."""
    return "".join(character if character.isprintable() else " " for character in text)
