"""Shows the progress of a run: in a terminal as one line that is updated, in a log as new lines."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from taugrad.platform.launching.launch import Watch
from taugrad.platform.launching.run_status import News
from taugrad.platform.terminal import SILENT_S
from taugrad.platform.training.reporting import TRAINING, Progress


class LiveRun:
    """Shows one run; a context manager that gives what takes the news that `launch` reports."""

    def __init__(
        self, console: Console, title: str, width: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Shows to `console`; titles are padded to `width`, so that several runs' lines align."""
        self._console, self._clock = console, clock
        self._title = title.ljust(width)
        self._trains = self._told = False
        self._stage = "starting"
        self._latest: Progress | None = None
        self._printed = clock()
        self._live = Live(self._waiting("starting"), console=console, refresh_per_second=4)

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._live.start()
        return self._watch

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _watch(self, news: News) -> None:
        """Takes news of the run; may come from another thread."""
        for notice in news.notices:
            self._console.print(
                f"{self._title.strip()}: {notice}", style="yellow", markup=False, soft_wrap=True
            )
        for stage in news.stages:
            self._stage, self._trains = stage, stage == TRAINING
        self._latest = news.progress or self._latest
        if self._console.is_terminal:
            if news.progress is not None and self._trains:
                self._live.update(self._line(news.progress))
            elif news.stages:
                self._live.update(self._waiting(news.stages[-1]))
        else:
            if news.stages and not self._told:
                self._told = True
                self._console.print(self._waiting(news.stages[0]), soft_wrap=True)
                self._printed = self._clock()
            for progress in news.evaluations:
                self._console.print(self._line(progress), soft_wrap=True)
                self._printed = self._clock()
            if self._clock() - self._printed >= SILENT_S:
                latest = self._latest if self._trains else None
                line = self._waiting(self._stage) if latest is None else self._line(latest)
                self._console.print(line, soft_wrap=True)
                self._printed = self._clock()

    def _waiting(self, what: str) -> Text:
        return Text.assemble((self._title, "bold"), f"  {what} {chr(0x2026)}")

    def _line(self, p: Progress) -> Text:
        value = "--" if p.value is None else p.metric.shown(p.value)
        own, agreed = (" (workers' own models)", " (agreed model)") if p.own_models else ("", "")
        left = (
            0 if self._console.is_terminal else p.iterations - p.iteration
        )  # a terminal's line is long enough
        pace = f" at {p.seconds_left / left:.3g} s each" if left else ""
        digits = len(str(p.iterations))
        return Text.assemble(
            (self._title, "bold"),
            f"  epoch {p.epoch:{len(str(p.epochs))}}/{p.epochs}",
            f"  iteration {p.iteration:{digits}}/{p.iterations}{pace}",
            f"  loss {p.loss:.4f}{own}",
            f"  {p.metric.label} {value:>7}{agreed}",
            f"  fraction {100 * p.fraction:6.2f}%",
            f"  {p.wire_bytes / 1e6:8.2f} MB sent",
            f"  {_clock(p.seconds_left)} left",
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
