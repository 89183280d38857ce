"""Faults at seeded moments of runs, and whether each run ends, bit for bit, as one that nothing happened to.

    python -m benchmarks.platform.soak [--quick] [--write]

At least 10 faults of each kind: some hours. It goes on where it was stopped (build/soak.jsonl). Cut links and
full disks need root.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from taugrad.platform.tracking.store import open_client

from ..harness.report import RESULTS, Options, Table, publish, say
from ..harness.trainings import BUILD, Kept, kept_in
from ..network import why_not
from .faults.cases import NotBegun, Result, Undisturbed, strike, undisturbed
from .faults.commands import RayHost, clean_environment
from .faults.kinds import (
    CheckpointDamaged,
    DiskFull,
    DriverKilled,
    Fault,
    LinkCut,
    NodeKilled,
    Stopped,
    StoreGone,
    TooLate,
    WorkerKilled,
)
from .faults.machines import Machines, OnMachines
from .faults.mlflow_server import Server
from .faults.places import JobHead, OnHead, Place, SharedRay, WithServer
from .faults.scenarios import AUTO, MODES, SEARCH, SUBMIT, Scenario, train

EACH = 10
"""Faults of each kind."""
MOST_TOO_LATE = 3
"""Times that a fault may come when all is over, before a scenario is left out."""

SCHEDULE: dict[type[Fault], list[Scenario]] = {
    NodeKilled: [
        *train("allgather"),
        *train("allgather", place="two machines"),
        SEARCH,
        *train("weights", place="two machines"),
        *train("hybrid"),
    ],
    DiskFull: train("allgather", "sharded", "simulated", place="shared Ray"),
    StoreGone: train("allgather", "weights", "async", place="MLflow server"),
    DriverKilled: [
        SUBMIT,
        *train("allgather", "sharded", "weights", "hybrid", "async", "simulated"),
        AUTO,
        SEARCH,
    ],
    WorkerKilled: [*train(*MODES, place="shared Ray"), SEARCH, AUTO, SUBMIT],
    CheckpointDamaged: [
        *train("weights", "hybrid", "async", place="shared Ray"),
        *train("allgather", "sharded", place="own Ray"),
    ],
    LinkCut: train("allgather", "sharded", "weights", "ring", place="two machines"),
    Stopped: train(*(mode for mode in MODES if mode != "simulated"), place="shared Ray"),
}
"""By kind, what it strikes, one after the other."""
NEED_ROOT: tuple[type[Fault], ...] = (LinkCut, DiskFull)

INTRODUCTION = (
    "A fault hits a run at a moment that follows from a seed. The run recovers by itself "
    "(`workers.max_restarts`), or is continued as its message says. It is then compared with an undisturbed "
    "run: the weights, optimizer, residuals and ledgers of its last checkpoint bit for bit, every point of "
    "every metric except times, and that each point is there once. Runs have 2 workers and 1,150 iterations "
    "on digits (`platform/faults/scenarios.py`). The trials and the front of a search are compared in the "
    "same way, and so are all trainings of `taugrad auto`."
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.platform.soak", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="one fault of each kind, to see that it works")
    parser.add_argument("--write", nargs="?", type=Path, const=RESULTS, metavar="FOLDER")
    parser.add_argument("--publish", action="store_true", help="what has been run so far, and no more")
    given = parser.parse_args(arguments)
    options = Options(
        given.quick, given.write, shlex.join(["python", "-m", "benchmarks.platform.soak", *arguments])
    )
    kept = Kept(kept_in("soak", quick=given.quick))
    if not given.publish:
        with Soak(kept, BUILD / "soak", quick=given.quick) as soak:
            soak.run()
    results = [Result(**entry) for entry in kept.entries]
    if not results:
        print("nothing was run", file=sys.stderr)
        return 2
    publish("soak", options, INTRODUCTION, tables(results))
    return int(any(result.lost for result in results))


class Soak(ExitStack):
    """The places, made when they are first needed, and what is known."""

    def __init__(self, kept: Kept, folder: Path, *, quick: bool) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self.kept, self.folder, self.quick = kept, folder, quick
        self._whole: dict[str, Undisturbed] = {}
        self._template = folder / "empty.db"
        if not self._template.exists():
            unfinished = folder / "unfinished.db"
            unfinished.unlink(missing_ok=True)
            open_client(f"sqlite:///{unfinished}")
            unfinished.rename(self._template)

    @cached_property
    def _server(self) -> Server:
        (self.folder / "server").mkdir(exist_ok=True)
        server = Server(self.folder / "server", clean_environment())
        self.callback(server.kill)
        server.start()
        return server

    @cached_property
    def _head(self) -> JobHead:
        return self.enter_context(closing(JobHead(self.folder / "head")))

    @cached_property
    def _machines(self) -> Machines:
        return self.enter_context(closing(Machines(self.folder / "machines")))

    @cached_property
    def _host(self) -> RayHost:
        return self.enter_context(closing(RayHost(self.folder / "shared-ray.txt")))

    def run(self) -> None:
        """Faults of all kinds in turn, until there are enough of each."""
        schedule: dict[type[Fault], list[Scenario]] = {}
        for make, scenarios in SCHEDULE.items():
            rooted = make in NEED_ROOT or any(scenario.place == "two machines" for scenario in scenarios)
            if rooted and (reason := why_not()):
                say(f"{make.name}: left out: {reason}")
            else:
                schedule[make] = scenarios
        for number in range(1 if self.quick else max(EACH, *map(len, SCHEDULE.values()))):
            for make, scenarios in schedule.items():
                if number < max(EACH, len(scenarios)):
                    self._one(make, scenarios[number % len(scenarios)], number)

    def _one(self, make: type[Fault], scenario: Scenario, number: int) -> None:
        """One case, unless it is done."""
        if self.kept.known({"fault": make.name, "scenario": scenario.name, "number": number}):
            return
        for attempt in range(MOST_TOO_LATE):
            try:
                self._strike(make, scenario, number, attempt)
                return
            except TooLate:
                say("  too late: it was over")
            except NotBegun as problem:
                say(f"  did not begin: {problem}")

    def _strike(self, make: type[Fault], scenario: Scenario, number: int, attempt: int) -> None:
        whole = self.whole(scenario)
        say(f"{make.name} {number}: {scenario.name}, {scenario.place}")
        folder = self.folder / f"{make.__name__}-{number}-{attempt}"
        shutil.rmtree(folder, ignore_errors=True)
        result = strike(
            self._place(folder, scenario),
            lambda place, chance: make(place, chance, short=self.quick),
            f"{make.__name__} {scenario.name} {number} {attempt}",
            number,
            whole,
        )
        self.kept.add(asdict(result))
        how = "by itself" if result.starts == 1 else f"{result.starts} commands"
        say(f"  {result.seconds:.0f} s, {how}: {result.lost or 'nothing lost'}")
        if not result.lost:
            shutil.rmtree(folder, ignore_errors=True)

    def whole(self, scenario: Scenario) -> Undisturbed:
        """The scenario where nothing happened; run once."""
        name = scenario.name.replace("submit", "train")
        if name not in self._whole:
            say(f"undisturbed: {name}")
            folder = self.folder / f"undisturbed-{name.replace(' ', '-')}"
            # Where it runs changes no bit.
            kind, mode = ("train" if scenario.kind == "submit" else scenario.kind), scenario.mode
            there = Scenario(kind, mode, "shared Ray" if kind == "train" else "own Ray")
            self._whole[name] = undisturbed(lambda: self._place(folder, there), folder, program())
        return self._whole[name]

    def _place(self, folder: Path, scenario: Scenario) -> Place:
        made = folder, scenario, self._template
        match scenario.place:
            case "own Ray":
                return Place(*made)
            case "shared Ray":
                return SharedRay(*made, self._host)
            case "MLflow server":
                return WithServer(*made, self._server)
            case "job head":
                return OnHead(*made, self._head)
            case "two machines":
                return OnMachines(*made, self._machines)


def program() -> str:
    """Which version of the program this is: git's names of what trains."""
    line = ["git", "-C", str(BUILD.parent), "rev-parse", "HEAD:compressors", "HEAD:platform", "HEAD:search"]
    return " ".join(subprocess.run(line, capture_output=True, text=True, check=True).stdout.split())


def tables(results: Sequence[Result]) -> list[Table]:
    """By kind of fault, by what was struck, and what was lost."""
    columns = ("injected", "survived", "lost", "by itself", "gone on with", "seconds a run")
    tables = [
        Table("By fault", ("fault", *columns, "in"), _rows(results, "fault", "scenario")),
        Table("By what was run", ("run", *columns, "by"), _rows(results, "scenario", "fault")),
    ]
    rows = [
        (f"{result.fault}, {result.scenario}, {result.number}", result.done, result.lost)
        for result in results
        if result.lost
    ]
    return tables + [Table("Lost", ("case", "what was done", "what was lost"), rows)] * bool(rows)


def _rows(results: Sequence[Result], key: str, beside: str) -> list[tuple[str, ...]]:
    rows = []
    for name in dict.fromkeys(getattr(result, key) for result in results):
        those = [result for result in results if getattr(result, key) == name]
        lost = sum(bool(result.lost) for result in those)
        alone = sum(result.starts == 1 and not result.lost for result in those)
        counts = (len(those), len(those) - lost, lost, alone, len(those) - lost - alone)
        seconds = sum(result.seconds for result in those) / len(those)
        others = Counter(getattr(result, beside) for result in those)
        rows.append((name, *map(str, counts), f"{seconds:.0f}", ", ".join(others)))
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
