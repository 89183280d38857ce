"""The README's table is what its command comes to, within what another machine may change."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
POINTS = 1.5
"""Accuracy may differ by this many: another CPU adds in another order, and training goes another way."""
SHARE = 0.1
"""Bytes and what follows from them may differ by this share of themselves."""


def table(text: str) -> dict[str, list[float]]:
    """The table's rows by the run's name: accuracy, MB, share and ratios, without the time."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0] == COLUMNS
    return {row[0]: [float(re.sub("[x,]", "", cell)) for cell in row[1:-1]] for row in cells[2:]}


COLUMNS = [
    "run",
    "accuracy %",
    "paper MB",
    "wire MB",
    "sent %",
    "times smaller",
    "than 16 bits",
    "ratio %/GB",
    "time s",
]


def test_the_readmes_table_is_that_of_its_command(taugrad, tmp_path):
    _, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- quickstart: begin -->")
    told = table(rest.partition("<!-- quickstart: end -->")[0])
    specs = sorted((ROOT / "experiments" / "quickstart").glob("*.yaml"))
    done = taugrad("train", *map(str, specs))
    assert done.returncode == 0, done.stderr
    found = table(
        (tmp_path / "taugrad-runs" / "figures" / "quickstart" / "table.md").read_text(encoding="utf-8")
    )
    assert list(found) == list(told) == ["none", "wgt", "bgt", "qgt"]
    for name, (accuracy, *others) in found.items():
        assert accuracy == pytest.approx(told[name][0], abs=POINTS), name
        assert others == pytest.approx(told[name][1:], rel=SHARE), name
