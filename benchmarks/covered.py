"""Lines and branches of our packages that the tests run.

    pip install --target build/coverage_tool coverage==7.17.4
    PYTHONPATH=build/coverage_tool python benchmarks/covered.py [--quick] [--write]

Each part of the tests runs in one process; processes that it starts, such as Ray's workers, are measured.
Can be stopped and continued: build/covered has what is known.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from report import Table, load, publish, read_options
from trainings import BUILD

ROOT = Path(__file__).resolve().parent.parent
TOOL = BUILD / "coverage_tool"
ROOMS = ("compressors", "platform", "search", "dashboards")
PARTS = ("platform", "search", "compressors", "dashboards", "cuda", "integration")
QUICK_PARTS = ("search/test_space.py",)
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
"""
START = "import coverage\ncoverage.process_startup()\n"
INTRODUCTION = (
    "Lines and branches of each package that run in the tests, by coverage.py. The tests of the root folder "
    "and of the documentation are not among them. Kernels that numba or a C++ compiler has compiled are not "
    "measured, and count as not run."
)


def measure(folder: Path, parts: Sequence[str]) -> list[str]:
    """Runs the parts that have not run yet; what pytest says at the end of each."""
    include = "\n    ".join(str(ROOT / room / "*") for room in ROOMS)
    settings = folder / "settings.ini"
    settings.write_text(SETTINGS.format(folder=folder, include=include), encoding="utf-8")
    (TOOL / "sitecustomize.py").write_text(START, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(TOOL),
        "COVERAGE_PROCESS_START": str(settings),
        "OMP_NUM_THREADS": "1",
    }
    ends = []
    for part in parts:
        kept = folder / f"{part.replace('/', '-')}.txt"
        if not kept.exists():
            print(f"tests/{part} ...", flush=True)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{part}"]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            kept.write_text(done.stdout.splitlines()[-1] + "\n", encoding="utf-8")
        ends.append(kept.read_text(encoding="utf-8").strip())
    return ends


def by_room(folder: Path) -> list[tuple[str, ...]]:
    """The table's rows."""
    tool = [sys.executable, "-m", "coverage"]
    settings = ["--rcfile", str(folder / "settings.ini")]
    environment = os.environ | {"PYTHONPATH": str(TOOL)}
    report = folder / "report.json"
    for command in (["combine", "-q", "--keep", *settings], ["json", "-q", *settings, "-o", str(report)]):
        subprocess.run([*tool, *command], env=environment, check=True)
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    sums = {room: dict.fromkeys(names, 0) for room in (*ROOMS, "all")}
    for path, found in files.items():
        (room,) = {part for part in Path(path).parts if part in ROOMS}
        for name in names:
            sums[room][name] += found["summary"][name]
            sums["all"][name] += found["summary"][name]
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


def main(arguments: Sequence[str]) -> int:
    options = read_options("covered.py", __doc__.partition("\n")[0], arguments)
    before, folder = load(), BUILD / f"covered{'-quick' if options.quick else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    parts = QUICK_PARTS if options.quick else PARTS
    ends = measure(folder, parts)
    tables = [
        Table("Run by the tests", ("package", "lines", "%", "branches", "%"), by_room(folder)),
        Table(
            "The tests", ("part", "ended with"), [(f"tests/{p}", e) for p, e in zip(parts, ends, strict=True)]
        ),
    ]
    publish("covered", options, INTRODUCTION, tables, before)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
