"""Lines and branches of our packages that the tests run.

    pip install --target build/coverage_tool coverage==7.17.4
    PYTHONPATH=build/coverage_tool python benchmarks/covered.py [all] [compressors] [--quick] [--write]

Each part of the tests runs in one process; processes that it starts, such as Ray's workers, are measured.
`compressors` measures that package alone, beside a commit from before its tests became half as many. Can be
stopped and continued: build/covered has what is known.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from report import Table, load, publish, read_options
from trainings import BUILD

ROOT = Path(__file__).resolve().parent.parent
TOOL = BUILD / "coverage_tool"
ROOMS = ("compressors", "platform", "search", "dashboards")
PARTS = ("platform", "search", "compressors", "dashboards", "cuda", "integration")
QUICK_PARTS = ("search/test_space.py",)
COMPRESSORS = ("compressors", "cuda")
"""The parts that test the compressors."""
BEFORE = "cf33329"
"""The commit before that work began, with two programs in place of one for all devices."""
SETTINGS = """[run]
branch = True
parallel = True
sigterm = True
concurrency = multiprocessing,thread
data_file = {folder}/data
include =
    {include}
[report]
include =
    {include}
exclude_also =
    if TYPE_CHECKING:
    @abstractmethod
    @njit
    @intrinsic
"""
START = "import coverage\ncoverage.process_startup()\n"
INTRODUCTION = (
    "Lines and branches of each package that run in the tests, by coverage.py. The tests of the root folder "
    "and of the documentation are not among them. Kernels that numba or a C++ compiler compiles cannot be "
    "measured so, and are left out."
)


@dataclass(frozen=True)
class Suite:
    """Tests of a program, and where what they ran is kept."""

    root: Path
    rooms: Sequence[str]
    parts: Sequence[str]
    folder: Path

    def measure(self) -> list[str]:
        """Runs the parts that have not run yet; what pytest says at the end of each."""
        self.folder.mkdir(parents=True, exist_ok=True)
        include = "\n    ".join(str(self.root / room / "*") for room in self.rooms)
        settings = self.folder / "settings.ini"
        settings.write_text(SETTINGS.format(folder=self.folder, include=include), encoding="utf-8")
        (TOOL / "sitecustomize.py").write_text(START, encoding="utf-8")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TOOL), str(self.root / "src")]),
            "COVERAGE_PROCESS_START": str(settings),
            "OMP_NUM_THREADS": "1",
        }
        ends = []
        for part in self.parts:
            kept = self.folder / f"{part.replace('/', '-')}.txt"
            if not kept.exists():
                print(f"tests/{part} ...", flush=True)
                command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{part}"]
                done = subprocess.run(
                    command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
                )
                kept.write_text(done.stdout.splitlines()[-1] + "\n", encoding="utf-8")
            ends.append(kept.read_text(encoding="utf-8").strip())
        return ends

    def by_room(self) -> list[tuple[str, ...]]:
        """A row for each package, and one for all if there are several."""
        tool = [sys.executable, "-m", "coverage"]
        settings = ["--rcfile", str(self.folder / "settings.ini")]
        environment = os.environ | {"PYTHONPATH": str(TOOL)}
        report = self.folder / "report.json"
        combine = ["combine", "-q", *settings]
        # What processes left is combined once: nothing is left of it later.
        steps = [combine] if any(self.folder.glob("data.*")) else []
        for command in (*steps, ["json", "-q", *settings, "-o", str(report)]):
            subprocess.run([*tool, *command], env=environment, cwd=self.root, check=True)
        files = json.loads(report.read_text(encoding="utf-8"))["files"]
        names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
        sums = {room: dict.fromkeys(names, 0) for room in (*self.rooms, "all")}
        for path, found in files.items():
            parts = (self.root / path).resolve().relative_to(self.root).parts
            (room,) = {part for part in parts if part in self.rooms}
            for name in names:
                sums[room][name] += found["summary"][name]
                sums["all"][name] += found["summary"][name]
        if len(self.rooms) == 1:
            del sums["all"]
        return [
            (
                room,
                f"{each['num_statements']:,}",
                f"{100 * each['covered_lines'] / max(1, each['num_statements']):.1f}",
                f"{each['num_branches']:,}",
                f"{100 * each['covered_branches'] / max(1, each['num_branches']):.1f}",
            )
            for room, each in sums.items()
        ]

    def tables(self, when: str = "") -> list[Table]:
        """What ran, and how the tests ended."""
        ends = [(f"tests/{part}", end) for part, end in zip(self.parts, self.measure(), strict=True)]
        columns = ("package", "lines", "%", "branches", "%")
        return [
            Table(f"Run by the tests{when}", columns, self.by_room()),
            Table(f"The tests{when}", ("part", "ended with"), ends),
        ]


def copied(commit: str, folder: Path) -> Path:
    """The files of a commit in a folder, unless they are there."""
    if not folder.exists():
        folder.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder


def main(arguments: Sequence[str]) -> int:
    options = read_options("covered.py", __doc__.partition("\n")[0], arguments, parts=("all", "compressors"))
    before = load()
    if options.quick:
        tables = Suite(ROOT, ROOMS, QUICK_PARTS, BUILD / "covered-quick").tables()
        publish("covered", options, INTRODUCTION, tables, before)
        return 0
    if "all" in options.parts:
        publish(
            "covered", options, INTRODUCTION, Suite(ROOT, ROOMS, PARTS, BUILD / "covered").tables(), before
        )
    if "compressors" in options.parts:
        then = copied(BEFORE, BUILD / "covered-before" / "tree")
        tables = [
            *Suite(then, ("compressors",), COMPRESSORS, BUILD / "covered-before").tables(f" at {BEFORE}"),
            *Suite(ROOT, ("compressors",), COMPRESSORS, BUILD / "covered-compressors").tables(" now"),
        ]
        publish("covered_compressors", options, INTRODUCTION, tables, before)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
