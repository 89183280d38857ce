"""What happens to a run, and how the world is mended afterwards."""

import os
import random
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil

from .commands import Command, named
from .machines import OnMachines
from .places import OnHead, Place, SharedRay


class SmallDisk:
    """One, mounted at a folder; what lay there comes back when it is closed."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        """Mounts it; raises subprocess.CalledProcessError where that is not allowed."""
        self._folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "soak", str(folder)]
        subprocess.run(mount, check=True, capture_output=True, text=True)

    def fill(self) -> None:
        """Leaves no byte."""
        for piece in (2**20, 1):
            with suppress(OSError), (self._folder / "filling").open("ab", buffering=0) as file:
                while file.write(bytes(piece)) == piece:
                    pass

    def empty(self) -> None:
        """Takes away what filled it."""
        (self._folder / "filling").unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)


_TRAINS, _TRIES = "RayTrainWorker", "ImplicitFunc"
"""Ray's names for processes that train, as workers or as a search's trials."""
_STOPPED_S, _SHORT_S = 30.0, 2.0
_DISK_BYTES = 64 * 2**20


class TooLate(Exception):
    """There is nothing left that could be struck."""


class Fault(ABC):
    """One kind of fault; an object for each time that it strikes.

    Attributes:
        name: of the kind, in tables.
        lasts_s: seconds, the least and the most, after which it is mended.
        seconds: after which this one is.
    """

    name: str
    lasts_s = (0.0, 0.0)

    def __init__(self, place: Place, chance: Random, *, short: bool) -> None:
        self.place: Any = place
        self.chance, self.short = chance, short
        least, most = self.lasts_s
        self.seconds = min(least, _SHORT_S) if short else chance.uniform(least, most)

    def prepare(self) -> None:  # noqa: B027 (most need nothing)
        """Before the command is started."""

    @abstractmethod
    def strike(self, command: Command) -> str:
        """Does it, and says what was done; raises TooLate."""

    def mend(self) -> None:  # noqa: B027 (what is dead stays dead)
        """Makes the world as it was, after a while."""

    def clear(self) -> None:  # noqa: B027
        """Removes what was prepared, when the case is over."""

    def trains(self, command: Command) -> psutil.Process:
        """A process that trains, by chance."""
        everything = self.place.processes(command)
        processes = named(everything, _TRAINS) or named(everything, _TRIES)
        if not processes:
            raise TooLate
        return self.chance.choice(sorted(processes, key=lambda process: process.pid))


def check_running(command: Command) -> None:
    """Raises TooLate: a command has ended."""
    if not command.runs:
        raise TooLate


class WorkerKilled(Fault):
    """SIGKILL to one of the processes that train."""

    name = "worker killed"

    def strike(self, command: Command) -> str:
        worker = self.trains(command)
        worker.kill()
        return f"SIGKILL to {worker.name()}"


class DriverKilled(Fault):
    """SIGKILL to the command, or to a job's driver."""

    name = "driver killed"

    def strike(self, command: Command) -> str:
        driver = command.process.pid
        if isinstance(self.place, OnHead):
            jobs = [
                process
                for process in named(self.place.processes(command)[1:], "taugrad train")
                if process.pid != driver and process.name() not in ("sh", "bash")  # the shell that started it
            ]
            if not jobs:
                raise TooLate
            driver = jobs[-1].pid
        os.kill(driver, signal.SIGKILL)
        return "SIGKILL to the driver"


class NodeKilled(Fault):
    """SIGKILL to a Ray node: its raylet, whose workers end with it, or the whole second machine."""

    name = "Ray node killed"
    lasts_s = (1, 10)

    def strike(self, command: Command) -> str:
        if isinstance(self.place, OnMachines):
            check_running(command)
            self.place.machines.kill_second()
            return "SIGKILL to all on the second machine"
        raylets = [process for process in self.place.processes(command) if process.name() == "raylet"]
        if not raylets:
            raise TooLate
        raylets[0].kill()
        return "SIGKILL to the raylet"

    def mend(self) -> None:
        if isinstance(self.place, OnMachines):
            time.sleep(self.seconds)
            self.place.machines.start_second()


class LinkCut(Fault):
    """The second machine's link carries nothing for some seconds."""

    name = "link cut"
    lasts_s = (2, 30)

    def strike(self, command: Command) -> str:
        check_running(command)
        self.place.machines.network.unplug(1)
        return f"the link cut for {self.seconds:.0f} s"

    def mend(self) -> None:
        time.sleep(self.seconds)
        self.place.machines.network.plug_in(1)

    def clear(self) -> None:
        self.place.machines.network.plug_in(1)
        self.place.machines.start_second()  # Ray ends a node that was silent for too long


class Stopped(Fault):
    """SIGSTOP to a worker, and SIGCONT after 30 s."""

    name = "worker stopped"
    lasts_s = (_STOPPED_S, _STOPPED_S)

    def strike(self, command: Command) -> str:
        self._worker = self.trains(command)
        self._worker.suspend()
        return f"SIGSTOP to {self._worker.name()}"

    def mend(self) -> None:
        time.sleep(self.seconds)
        with suppress(psutil.NoSuchProcess):
            self._worker.resume()


class StoreGone(Fault):
    """MLflow's server is killed, and is started again some seconds later."""

    name = "MLflow gone"
    lasts_s = (1, 20)

    def strike(self, command: Command) -> str:
        self.place.server.kill()
        return "SIGKILL to MLflow's server"

    def mend(self) -> None:
        time.sleep(self.seconds)
        self.place.server.start()


class DiskFull(Fault):
    """Nothing is left of the disk that has the checkpoints and MLflow's database; later there is again."""

    name = "disk full"
    lasts_s = (1, 8)

    def prepare(self) -> None:
        folder = self.place.folder
        kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self._disk = SmallDisk(folder, _DISK_BYTES)
        for name, content in kept.items():
            (folder / name).write_bytes(content)

    def strike(self, command: Command) -> str:
        check_running(command)
        self._disk.fill()
        return "nothing left on the disk of checkpoints and MLflow's database"

    def mend(self) -> None:
        time.sleep(self.seconds)
        self._disk.empty()

    def clear(self) -> None:
        self._disk.close()


class CheckpointDamaged(Fault):
    """A file of the newest checkpoint is cut or has another byte, and then a worker or the driver dies."""

    name = "checkpoint damaged"

    def strike(self, command: Command) -> str:
        deadline = time.monotonic() + 60
        while not (whole := sorted(self.place.storage.glob("*/iteration_*/manifest.json"))):
            if not command.runs or time.monotonic() > deadline:
                raise TooLate
            time.sleep(0.05)
        newest = max(whole, key=lambda path: path.parent.name).parent
        path = self.chance.choice(sorted(newest.iterdir()))
        how = damage(path, self.chance)
        driver = self.chance.random() < 0.5 and not isinstance(self.place, SharedRay)
        if driver:
            DriverKilled(self.place, self.chance, short=self.short).strike(command)
        else:
            self.trains(command).kill()
        return f"{path.parent.name}/{path.name} {how}, {'the driver' if driver else 'a worker'} killed"


def damage(path: Path, chance: random.Random) -> str:
    """Changes one byte of a file, or cuts it; how."""
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    if chance.random() < 0.5:
        path.write_bytes(data[:at])
        return f"cut after {at} bytes"
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"changed in byte {at}"
