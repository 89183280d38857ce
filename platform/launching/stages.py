"""The stages of a command before and after training: for people who wait, and to see where time goes."""

import csv
import io
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Stage:
    """Something that takes a while."""

    name: str
    """In a few words, such as `starting Ray`."""
    began: float
    """Seconds since 1970."""


def stage(name: str) -> Stage:
    """A stage that begins now."""
    return Stage(name, time.time())


class Timeline:
    """The stages of a command, one after the other."""

    def __init__(self) -> None:
        """Begins with the process, whose imports count."""
        self._began = psutil.Process().create_time()
        self._stages = [Stage("reading the command", self._began)]

    def add(self, begun: Stage) -> None:
        """Notes that a stage began, and with that, that the one before it ended."""
        self._stages.append(begun)

    def to_csv(self) -> str:
        """A table: stage, seconds from the command's start to its beginning, seconds that it took."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["stage", "began_s", "seconds"])
        ends = [each.began for each in self._stages[1:]] + [time.time()]
        for each, end in zip(self._stages, ends, strict=True):
            writer.writerow([each.name, f"{each.began - self._began:.2f}", f"{end - each.began:.2f}"])
        return text.getvalue()
