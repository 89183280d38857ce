"""The board: where worker 0 pins progress and notices, and the driver reads them."""

from typing import Any

from ..training.reporting import Progress


class Board:
    """A Ray actor (made by `launch`); holds the latest progress and every notice."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._notices: list[str] = []

    def pin(self, progress: Progress) -> None:
        """Replaces the progress."""
        self._progress = progress

    def notify(self, notice: str) -> None:
        """Adds a line for the user."""
        self._notices.append(notice)

    def read(self, seen: int) -> tuple[Progress | None, list[str]]:
        """The latest progress, and the notices after the first `seen`."""
        return self._progress, self._notices[seen:]


BoardHandle = Any
"""A Ray actor handle of `Board`."""
