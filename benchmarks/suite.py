"""How many tests there are, how long they take, and how long the compressors' program is.

    python benchmarks/suite.py [--quick] [--write]

Runs `make test`, and keeps what it says in build/suite/test.txt; where that is there, it is not run again.
What `.ci/run` says will do, too: it calls `make test`.
Tests and lines stand beside those of a commit from before the compressors became one program for all devices.
`--quick` counts the tests of one file, and runs none.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from covered import BEFORE, ROOT, copied
from report import Table, load, number, publish, read_options, verdict
from trainings import BUILD

QUICK = "tests/search/test_space.py"
MOST_TESTS, MOST_MINUTES, FEWER_LINES = 4500, 10, 2500
"""The goals."""
INTRODUCTION = (
    "Lines are those of Python files, with comments and empty lines. `make test` runs all tests, in "
    "processes that share this machine's cores."
)
REASONS = (
    "Time: most of it is whole runs, as users start them, with Ray, MLflow and a browser. They keep both "
    "cores busy, so more processes would not be faster.",
    "Lines: one program for all devices is shorter than two, but a bucket in one kernel call took more lines "
    "than a call for each parameter, and several connections, sites, authenticated messages and lost peers "
    "have come since.",
)


def tests_of(root: Path, what: str) -> int:
    """How many tests pytest finds."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", what]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return int(re.findall(r"^(\d+)(?:/\d+)? tests collected", done.stdout, re.MULTILINE)[-1])


def lines_of(root: Path) -> int:
    """Of the compressors' Python files."""
    return sum(
        len(file.read_text(encoding="utf-8").splitlines()) for file in root.glob("compressors/**/*.py")
    )


def closing_line() -> str:
    """What `make test` says at its end."""
    kept = BUILD / "suite" / "test.txt"
    if not kept.exists():
        print("make test ...", flush=True)
        done = subprocess.run(["make", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout, encoding="utf-8")
    found = re.findall(
        r"^=* ?(\d+ passed.* in [\d.]+s.*?) ?=*$", kept.read_text(encoding="utf-8"), re.MULTILINE
    )
    if not found:
        sys.exit(f"{kept}: the tests did not pass, or did not end; remove it to run them again")
    return str(found[-1])


def main(arguments: Sequence[str]) -> int:
    options = read_options("suite.py", __doc__.partition("\n")[0], arguments)
    before = load()
    then = copied(BEFORE, BUILD / "covered-before" / "tree")
    lines, lines_then = lines_of(ROOT), lines_of(then)
    tests, tests_then = (tests_of(root, QUICK if options.quick else "tests") for root in (ROOT, then))
    most_lines = lines_then - FEWER_LINES
    rows = [
        ("tests", f"{tests_then:,}", f"{tests:,}", verdict(tests, MOST_TESTS)),
        ("lines of the compressors", f"{lines_then:,}", f"{lines:,}", verdict(lines, most_lines)),
    ]
    notes = REASONS
    if not options.quick:
        said = closing_line()
        (seconds,) = re.findall(r" in ([\d.]+)s", said)
        minutes = float(seconds) / 60
        rows.append(("`make test`, minutes", "", number(minutes), verdict(minutes, MOST_MINUTES)))
        notes = (f"`make test` ended with: {said}.", *REASONS)
    table = Table("Tests and lines", ("", f"at {BEFORE}", "now", "goal"), rows, notes)
    publish("suite", options, INTRODUCTION, [table], before)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
