"""A case: a scenario, a fault, and a number from which its moment and all else that is by chance follow."""

import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from taugrad.platform.tracking.store import open_client

from ...harness.report import say
from .commands import Command
from .comparing import Outcome, differences, outcomes
from .kinds import Fault, TooLate
from .places import STORAGE, Place

_GOES_ON = re.compile(r"--resume ([0-9a-f]{32})")
_DELIVER = re.compile(r"taugrad deliver (\S+)")
_FINISHED = "this run is finished"
_MOST_STARTS = 6


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    fault: str
    scenario: str
    place: str
    number: int
    moment: float
    """Share of the time at work, measured where nothing happened, after which it struck."""
    done: str
    """What was done to the run."""
    seconds: float
    starts: int
    """Commands that it took; 1: it came back by itself."""
    lost: str
    """What is not as in a run that nothing happened to; empty: nothing."""


@dataclass(frozen=True)
class Undisturbed:
    """A scenario that nothing happened to."""

    uri: str
    experiment: str
    storage: Path
    working_s: float
    """From its first sign of work to its end."""

    @cached_property
    def outcomes(self) -> dict[str, list[Outcome]]:
        """Its runs."""
        return outcomes(open_client(self.uri), self.experiment, self.storage)


class NotBegun(Exception):
    """A command ended before anything could be done to it; nothing was struck."""


class Lost(Exception):
    """A run could not be brought to its end."""


def undisturbed(make: Callable[[], Place], folder: Path, program: str) -> Undisturbed:
    """Runs a scenario in peace, unless an earlier start of the harness has with this version of the program.

    Raises RuntimeError: the scenario does not end well.
    """
    note = folder.with_suffix(".json")
    if note.exists() and (known := json.loads(note.read_text()))["program"] == program:
        return Undisturbed(known["uri"], known["experiment"], folder / STORAGE, known["working_s"])
    shutil.rmtree(folder, ignore_errors=True)
    place = make()
    scenario = place.scenario
    command = place.start(place.first())
    working = command.wait_for(scenario.begun)
    begun = time.monotonic()
    if command.wait() != 0 or not working:
        raise RuntimeError(f"{scenario.name} failed where nothing happened:\n{command.said[-3000:]}")
    told = {"program": program, "uri": place.uri, "experiment": place.experiment}
    note.write_text(json.dumps(told | {"working_s": time.monotonic() - begun}))
    return undisturbed(make, folder, program)


def strike(
    place: Place, make: Callable[[Place, Random], Fault], seed: str, number: int, whole: Undisturbed
) -> Result:
    """Runs a scenario, has a fault strike it, brings it to its end, and compares it with the whole one.

    From the seed its moment and all else that is by chance follow. Raises NotBegun: it did not come to its
    work, such as on a machine on which Ray does not start in time; TooLate: there was nothing left that could
    be struck.
    """
    scenario = place.scenario
    chance = Random(seed)
    moment, fault, begun = chance.random(), make(place, chance), time.monotonic()
    lost, done, starts = "", "nothing: it was over", 1
    fault.prepare()
    command = place.start(place.first())
    try:
        if not command.wait_for(scenario.begun):
            raise NotBegun(command.said[-300:])
        # What comes after the last step, figures and tables, is a part of it that has nothing to lose.
        time.sleep(moment * 0.7 * whole.working_s)
        done = fault.strike(command)
        say(f"  after {moment:.0%}: {done}")
        fault.mend()
        commands = bring_to_end(place, command)
        starts = len(commands)
        _deliver(place, commands)
        outcomes_ = outcomes(place.client(), place.experiment, place.storage)
        twice = [name for name, several in outcomes_.items() if len(several) != 1]
        different = [
            *(f"{len(outcomes_[name])} finished runs of one spec" for name in twice),
            *differences(outcomes_, whole.outcomes),
            *differences(files_of(place.storage), files_of(whole.storage)),
        ]
        lost = "; ".join(different[:3]) + (f"; and {len(different) - 3} more" if len(different) > 3 else "")
    except Lost as problem:
        lost = str(problem)
    finally:
        command.kill()
        fault.clear()
    seconds = time.monotonic() - begun
    struck = (fault.name, scenario.name, scenario.place, number, moment)
    return Result(*struck, done, seconds, starts, " ".join(lost.split()))


def bring_to_end(place: Place, command: Command) -> list[Command]:
    """Waits for a command's end, and goes on as it says or as a user would; all commands that it took.

    Raises Lost: it hung, or did not end well however often it was gone on with; TooLate: the run had ended
    well before it was struck.
    """
    commands = [command]
    while (code := commands[-1].wait()) != 0:
        said = commands[-1].said
        if code is None:
            raise Lost(f"it hung: {said[-300:]}")
        if _FINISHED in said:  # what was struck was over
            raise TooLate
        if len(commands) > _MOST_STARTS:
            raise Lost(f"it ended with {code} again and again: {said[-300:]}")
        commands.append(place.start(going_on(place, commands[-1])))
    return commands


def going_on(place: Place, command: Command) -> list[str]:
    """The command that goes on: what the one before said, the run's folder, or the same again."""
    if place.scenario.kind in ("search", "auto"):
        return place.first()
    told = _GOES_ON.findall(command.said)
    runs = [path.name for path in place.storage.glob("*") if re.fullmatch(r"[0-9a-f]{32}", path.name)]
    if not told and not runs:
        return place.first()
    return ["train", "--resume", told[-1] if told else runs[0]]


def _deliver(place: Place, commands: Sequence[Command]) -> None:
    """Metrics and checkpoints that were not stored in time, as the commands say."""
    files = [match.rstrip(".,") for command in commands for match in _DELIVER.findall(command.said)]
    for file in dict.fromkeys(files):
        if Path(file).exists():
            place.start(["deliver", file]).wait()


def files_of(storage: Path) -> dict[str, str]:
    """A search's front, but for columns of times and of the runs' ids."""
    wholes = {}
    for path in sorted(storage.glob("searches/*/*/front.csv")):
        rows = [line.split(",") for line in path.read_text().splitlines()]
        kept = [i for i, name in enumerate(rows[0]) if not re.search("second|minute|run", name)]
        wholes[path.name] = "\n".join(",".join(row[i] for i in kept) for row in rows)
    return wholes
