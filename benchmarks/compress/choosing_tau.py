"""The table of docs/methods.md: the quickstart's training with other thresholds.

    python -m benchmarks.compress.choosing_tau [--quick] [--write]

With --write the table also takes the place of that in docs/methods.md.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..harness.report import Place, Table, load, publish, read_options
from ..platform.quickstart import COLUMNS, ROOT, TRAINED, trained

TAUS = (
    "bgt(tau=0.01)",
    "bgt(tau=0.02)",
    "bgt(tau=0.05)",
    "qgt(tau=0.005)",
    "qgt(tau=0.01)",
    "wgt(tau=0.01)",
    "wgt(tau=0.02)",
    "strom(tau=0.05)",
    "strom(tau=0.1)",
)
METHODS = Place(ROOT / "docs" / "methods.md", "<!-- choosing_tau: begin -->", "<!-- choosing_tau: end -->")


def main(arguments: Sequence[str]) -> int:
    """Trains and publishes."""
    options = read_options("compress.choosing_tau", __doc__.partition("\n")[0], arguments)
    epochs, before = 1 if options.quick else 10, load()
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, line in enumerate(TAUS):
            path = Path(folder) / f"{i}.yaml"
            path.write_text(f"compressor: {line}\n", encoding="utf-8")
            paths.append(str(path))
        rows = trained(paths, epochs)
    columns = ("compressor", COLUMNS[1], *COLUMNS[3:6])
    some = [(f"`{row[0]}`", row[1], *row[3:6]) for row in rows]
    table = Table("The quickstart's training with other thresholds", columns, some)
    introduction = "Each line is a spec that sets `compressor:` and nothing else. "
    introduction += TRAINED.format(epochs=epochs)
    publish("choosing_tau", options, introduction, [table], before, METHODS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
