"""Minutes to the targets as last measured, each workload by itself: one picture shows them all."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path

from ..harness.report import Options, environment
from ..harness.trainings import KEPT

PATH = KEPT / "network_target_times.json"
Minutes = Mapping[str, Mapping[str, float]]
"""By link and kind of exchange."""


@dataclass(frozen=True)
class Measured:
    """A workload's times, and where they come from."""

    target: str
    """What is to be reached."""
    minutes: Minutes
    command: str
    date: str
    machine: str

    @classmethod
    def now(cls, target: str, minutes: Minutes, options: Options) -> "Measured":
        """What this command has measured on this machine today."""
        date = datetime.now().astimezone().date().isoformat()
        return cls(target, minutes, options.command, date, environment())


def known(path: Path = PATH) -> dict[str, Measured]:
    """By workload."""
    if not path.exists():
        return {}
    return {name: Measured(**load) for name, load in json.loads(path.read_text(encoding="utf-8")).items()}


def keep(workload: str, measured: Measured, path: Path = PATH) -> dict[str, Measured]:
    """Writes a workload's times down in place of those before; all that are known now."""
    now = {**known(path), workload: measured}
    text = json.dumps({name: asdict(measured_) for name, measured_ in now.items()}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    return now


def credit(measured: Mapping[str, Measured]) -> str:
    """Commands, dates and machines, in a sentence for each day and machine."""

    def said() -> Iterator[str]:
        days = sorted(measured.values(), key=lambda day: (day.date, day.machine))
        for (date, machine), of_day in groupby(days, lambda day: (day.date, day.machine)):
            commands = " and ".join(dict.fromkeys(f"`{day.command}`" for day in of_day))
            yield f"{commands}, {date}, {machine}."

    return " ".join(said())
