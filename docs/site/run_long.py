"""Runs the pages' commands that take long, and writes what they print into the pages: `make docs-long`.

A page has the place for it behind a block of commands:

    <!-- output: NAME -->
    <!-- end of output -->

On a page that has files, all commands before the place are run, in a folder with these files; else those of
the block right before it. What serves until Ctrl-C is left out. Arguments name the places to run alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from textwrap import wrap

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import fences
from benchmarks.harness.report import environment
from fences import ROOT, Block

MISLEADING = ("RAY_", "MLFLOW_", "TAUGRAD_")
REACHED = ("benchmarks", "examples", "experiments")
"""Folders of the repository that commands name."""
SERVES = ("--serve", "--answer")
TIMEOUT_S = 900
WIDTH = 100
"""To which sentences are wrapped, as a terminal does; rows of tables stay whole."""
_PLACE = re.compile(
    r"(?P<begin><!-- output: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end of output -->)", re.DOTALL
)
_RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
"""What a table has below its head; lines before the first table are of the progress."""
_PLACES = re.compile(
    r"sqlite:|taugrad-runs|mlflow|Compare them|then open|Sum them up|\N{HORIZONTAL ELLIPSIS}$"
)
"""Of lines that say where files lie, or what is being done."""


def main(names: Sequence[str]) -> None:
    """Goes through all pages."""
    for page in fences.pages():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        for place in list(_PLACE.finditer(text)):
            if names and place["name"] not in names:
                continue
            print(f"{page}: {place['name']}", flush=True)
            now = path.read_text(encoding="utf-8")  # places before this one may have become longer
            said = _run(page, now[: now.index(place[0])].count("\n") + 1)
            today = f"Printed on {date.today()}; {environment()}:"
            made = f"{place['begin']}\n{today}\n\n```text\n{said}\n```\n\n{place['end']}"
            path.write_text(now.replace(place[0], made), encoding="utf-8")


def _run(page: str, line: int) -> str:
    """What the last command before a line prints."""
    before = [block for block in fences.blocks(page) if block.line < line]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for reached in REACHED:
            (folder / reached).symlink_to(ROOT / reached)
        for block in fences.blocks(page):
            if block.file:
                (folder / block.file).write_text(block.text, encoding="utf-8")
        said = ""
        for command in _commands(before):
            print(f"  {command}", flush=True)
            said = _output(command, folder)
        shutil.rmtree(folder / "taugrad-runs", ignore_errors=True)
    return said


def _commands(before: Sequence[Block]) -> list[str]:
    with_commands = [block for block in before if block.commands]
    has_files = any(block.file for block in before)
    lines = [line for block in with_commands[0 if has_files else -1 :] for line in block.commands]
    return [line for line in lines if not any(word in line for word in SERVES)]


def _output(command: str, folder: Path) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(MISLEADING)}
    path = f"{Path(sys.executable).parent}:{variables['PATH']}"
    answer = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=variables | {"PATH": path, "COLUMNS": str(WIDTH), "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if answer.returncode:
        sys.exit(f"{command}: exit code {answer.returncode}\n{answer.stdout}{answer.stderr}")
    return "\n".join(_kept([line.rstrip() for line in answer.stdout.splitlines()])).strip("\n")


def _kept(lines: Sequence[str]) -> list[str]:
    """From the head of the first table on, where there is one."""
    begin = next((i for i, line in enumerate(lines) if _RULE in line), 0)
    while begin and lines[begin - 1]:
        begin -= 1
    return [part for line in lines[begin:] if not _PLACES.search(line) for part in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    """A sentence in lines of at most WIDTH."""
    return [line] if len(line) <= WIDTH or "   " in line or _RULE in line else wrap(line, WIDTH)


if __name__ == "__main__":
    main(sys.argv[1:])
