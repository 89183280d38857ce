"""What the benchmarks share: their options, the machine, ratios with a spread, and tables.

Tables go to stdout and, with --write, to a dated file that no hand edits.
"""

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from time import strftime

import numba
import numpy as np
import torch

from taugrad.compressors.ops.cpu import avx512
from taugrad.platform.tasks import claims
from taugrad.platform.tasks.metric import LOSS

from ..network.network import why_not
from .pages import RESULTS


@dataclass(frozen=True)
class Spread:
    """A middle value, and the range that four fifths of the values lie in."""

    low: float
    """Ten percent of the values lie below."""
    middle: float
    high: float
    """Ten percent of the values lie above."""

    @classmethod
    def of(cls, values: Sequence[float], middle: float | None = None) -> "Spread":
        """The spread of some values, around their median unless another middle is given."""
        low, median, high = np.percentile(np.asarray(values), [10, 50, 90]).tolist()
        return cls(low, median if middle is None else middle, high)

    def __str__(self) -> str:
        return f"{number(self.middle)} ({number(self.low)} to {number(self.high)})"


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    """How to read it."""


def load() -> float:
    """How many processes wanted a core in the last minute: near 0 on an idle machine."""
    return os.getloadavg()[0]


@dataclass(frozen=True)
class Options:
    """What every benchmark can be told on its command line."""

    quick: bool
    folder: Path | None
    """Where to write the results; None leaves them on the screen."""
    command: str
    """The command itself, to repeat the run."""
    parts: tuple[str, ...] = ()
    """Which of a benchmark's parts to run."""
    load_before: float = field(default_factory=load)
    """When the benchmark began."""


Report = tuple[str, Sequence[Table]]
"""What was measured, in a few sentences, and the tables."""


def run_benchmark(
    make: Callable[[Options], Report | None],
    *,
    parts: Sequence[str] = (),
    place: "Place | None" = None,
    network: bool = False,
) -> None:
    """Runs the benchmark that Python was started with, such as `python -m benchmarks.papers.adamw`.

    Args:
        make: makes its report; None if it has published by itself.
        parts: those of a benchmark that can be told to run some of them; without being told it runs all.
        place: where in the documentation the tables stand too, when results are written to docs/results/.
        network: whether it needs network namespaces.
    """
    program = sys.modules["__main__"]
    assert program.__spec__
    assert program.__doc__
    script, description = program.__spec__.name, program.__doc__.partition("\n")[0]
    options = _read_options(script, description, parts)
    if network and (reason := why_not()):
        print(f"no network can be made here: {reason}", file=sys.stderr)
        sys.exit(2)
    if report := make(options):
        publish(script.rpartition(".")[2], options, *report, place)


def _read_options(script: str, description: str, parts: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog=f"python -m {script}", description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=RESULTS,
        metavar="FOLDER",
        help="also write the tables to a file with today's date (default folder: docs/results)",
    )
    if parts:
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(parts)}")
    given = parser.parse_args()
    asked = given.parts if parts else []
    if unknown := [part for part in asked if part not in parts]:
        parser.error(f"{unknown[0]}: choose from {', '.join(parts)}")
    return Options(
        given.quick, given.write, shlex.join(["python", "-m", script, *sys.argv[1:]]), tuple(asked or parts)
    )


def interval(differences: Sequence[float], decimals: int = 3) -> str:
    """The mean over seeds with its 95% interval (Student's t); one seed has none."""
    mean, ends = f"{fmean(differences):+.{decimals}f}", claims.interval(differences, None, LOSS)
    return f"{mean} ({ends[0]:+.{decimals}f} to {ends[1]:+.{decimals}f})" if ends else mean


def number(value: float) -> str:
    """A number with three significant digits, or all of those before the point."""
    if value == 0:
        return "0"
    # The exponent after rounding: 9.999 is written as 10.0.
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))
    return f"{value:,.{decimals}f}"


def verdict(value: float, goal: float) -> str:
    """Whether a ratio is within its goal; a statement, not a test."""
    return f"at most {number(goal)}: {'met' if value <= goal else 'missed'}"


def environment() -> str:
    """The machine and the versions, on one line."""
    cores = len(os.sched_getaffinity(0))
    parts = (
        f"{_cpu_model()}, {cores} core{'' if cores == 1 else 's'}",
        "AVX-512" if avx512.supported() else "no AVX-512",
        f"Python {platform.python_version()}",
        f"torch {torch.__version__}",
        f"numba {numba.__version__}",
        f"NumPy {np.__version__}",
    )
    return "; ".join(parts)


def say(what: str) -> None:
    """What a benchmark is at."""
    print(f"{strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Place:
    """Lines of a page of the documentation that a benchmark writes: what stands between two others."""

    page: Path
    begin: str
    end: str

    def fill(self, text: str) -> None:
        """Puts the text instead of what stands there."""
        before, _, rest = self.page.read_text(encoding="utf-8").partition(self.begin)
        _, _, after = rest.partition(self.end)
        self.page.write_text(f"{before}{self.begin}\n\n{text}\n\n{self.end}{after}", encoding="utf-8")
        print(f"written: {self.page}")


def publish(
    name: str, options: Options, introduction: str, tables: Sequence[Table], place: Place | None = None
) -> None:
    """Shows the tables, and writes them to DATE-name.md where the options ask for it.

    `introduction`: what was measured, in a few sentences. `place`: where in the documentation the tables
    stand too, when results are written to docs/results/.
    """
    date = datetime.now().astimezone().date().isoformat()
    circumstances = [
        ("Command", f"`{options.command}`"),
        ("Date", date),
        ("Machine", environment()),
        ("Load before", f"{options.load_before:.2f} (processes that wanted a core in the minute before)"),
    ]
    if options.quick:
        circumstances.append(
            ("Note", "a quick run: it shows that the benchmark works, and no figures to quote")
        )
    text = _markdown(name, circumstances, introduction, tables)
    print(text)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        path = options.folder / f"{date}-{name}.md"
        path.write_text(text, encoding="utf-8")
        print(f"written: {path}")
        if place is not None and options.folder == RESULTS:
            lines = [credit(options), "", introduction]
            for table in tables:
                title = ["", f"**{table.title}**"] if len(tables) > 1 else []
                lines += [*title, *_table_lines(table)]
            place.fill("\n".join(lines))


def credit(options: Options) -> str:
    """What made a figure, when, and on which machine: a sentence."""
    return f"`{options.command}`, {datetime.now().astimezone().date().isoformat()}, {environment()}."


def _markdown(
    name: str, circumstances: Sequence[tuple[str, str]], introduction: str, tables: Sequence[Table]
) -> str:
    lines = [f"# Benchmark: {name}", ""]
    lines += [f"- {label}: {text}" for label, text in circumstances]
    lines += ["", introduction]
    for table in tables:
        lines += ["", f"## {table.title}", *_table_lines(table)]
    return "\n".join(lines) + "\n"


def _table_lines(table: Table) -> list[str]:
    lines = ["", *markdown(table.columns, table.rows)]
    for note in table.notes:
        lines += ["", note]
    return lines


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruler = ["---", *["---:"] * (len(columns) - 1)]
    return [_line(cells) for cells in (columns, ruler, *rows)]


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
