"""The README's table: whole trainings, summed up by `taugrad train`.

    python -m benchmarks.platform.quickstart [--quick] [--write]

With --write the table also takes the place of the README's.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..harness.pages import tables
from ..harness.report import Options, Place, Report, Table, run_benchmark

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "experiments" / "quickstart").glob("*.yaml"))
COLUMNS = (
    *("run", "accuracy %", "paper MB", "wire MB", "sent %"),
    *("times smaller", "than 16 bits", "ratio %/GB", "time s"),
)
README = Place(ROOT / "README.md", "<!-- quickstart: begin -->", "<!-- quickstart: end -->")

TRAINED = (
    "2 workers on one machine, 5,000 MNIST digits, LeNet with 431,080 parameters, {epochs} epochs, one "
    'seed. MB are summed over both workers. "paper" counts value bits only, "wire" what was really handed '
    'to the network. "ratio" is the papers\' accuracy per paper GB.'
)
LOOPBACK = " Compression does not save time on loopback; it pays on slow links."


def main(options: Options) -> Report:
    epochs = 1 if options.quick else 10
    rows = trained([str(path) for path in SPECS], epochs)
    introduction = TRAINED.format(epochs=epochs) + LOOPBACK
    table = Table("The quickstart's four runs", COLUMNS, rows)
    return introduction, [table]


def trained(specs: Sequence[str], epochs: int) -> list[tuple[str, ...]]:
    """Trains specs by one command in an empty folder; the rows of the table that it leaves."""
    command = [sys.executable, "-m", "taugrad", "train", *specs, "--training.epochs", str(epochs)]
    with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"taugrad train ended with {done.returncode}: {done.stderr or done.stdout}")
        (path,) = Path(folder).glob("taugrad-runs/figures/*/table.md")
        ((_, _, rows),) = tables(path.read_text(encoding="utf-8"))
    return [tuple(row) for row in rows]


if __name__ == "__main__":
    run_benchmark(main, place=README)
