"""`taugrad` commands one after the other on one Ray, whose start takes longer than most of them do."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.platform.faults.commands import HostedCommand, RayHost, named
from servers import listeners


class Finished(NamedTuple):
    """A command that ended."""

    code: int | None
    said: str
    """On standard output and as errors."""


class OneRay(RayHost):
    """A Ray for commands and scripts, one after the other, in one folder; with the dashboard for searches."""

    program = Path(__file__).with_name("one_ray_for_scripts.py")

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Is started with its first command."""
        super().__init__(folder / "output.txt", environment, folder, dashboard=True)
        self.folder = folder

    def begin(self, *arguments: str, variables: Mapping[str, str] | None = None) -> HostedCommand:
        """Starts a command."""
        return self.start(arguments, self.folder, variables)

    def __call__(
        self, *arguments: str, variables: Mapping[str, str] | None = None, compare: bool = False
    ) -> Finished:
        """Runs a command."""
        command = self.start(arguments, self.folder, variables, compare=compare)
        return Finished(command.wait(), command.said)


def kill_a_worker(command: HostedCommand) -> None:
    """Ends a worker of the run that is trained."""
    named(command.family(), "RayTrainWorker")[-1].kill()


def listened_by(command: HostedCommand) -> frozenset[str]:
    """On which addresses a command and what it started have listened until its end."""
    results: set[str] = set()
    while command.runs:
        results |= listeners(command.family())
        time.sleep(2)  # to look takes time from what is looked at
    return frozenset(results)
