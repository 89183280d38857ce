"""Table numbers, from runs whose totals are known."""

import io

import pytest
from rich.console import Console

from taugrad.dashboards.runs import RunHistory
from taugrad.dashboards.table import render, to_markdown


def run(name: str, rule: str, **finals: float) -> RunHistory:
    return RunHistory(name, name, rule, None, {}, {}, {k.replace("__", "/"): v for k, v in finals.items()})


@pytest.fixture
def two():
    # 60,000 parameters, 2 workers, 630 iterations: 302.4 MB without compression.
    return [
        run(
            "wgt tau=0.001", "wgt", eval__accuracy=0.96875, total__paper_gb=0.01512, total__wire_gb=0.0189,
            total__fraction=0.05, total__compression_ratio=16.0, total__accuracy_per_gb=6407.0767,
            total__seconds=41.26,
        ),
        run(
            "none", "none", eval__accuracy=0.9712, total__paper_gb=0.3024, total__wire_gb=0.3024,
            total__fraction=1.0, total__compression_ratio=1.0, total__accuracy_per_gb=321.164,
            total__seconds=1234.5,
        ),
    ]  # fmt: skip


def test_markdown(two):
    assert to_markdown(two).splitlines() == [
        "| run | accuracy % | paper MB | wire MB | sent % | times smaller | than 16 bits "
        "| ratio %/GB | time s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| none | 97.12 | 302 | 302 | 100 | 1.00x | 0.500x | 321 | 1,234 |",
        "| wgt tau=0.001 | 96.88 | 15.1 | 18.9 | 5.00 | 16.0x | 8.00x | 6,407 | 41.3 |",
    ]


def test_the_terminal_shows_names_and_numbers_in_80_columns(two):
    odd = run("[red]name[/red]", "wgt", total__accuracy_per_gb=2_751_714.0)
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(render([*two, odd]))
    text = console.export_text()
    assert "…" not in text
    for expected in ("none", "wgt", "tau=0.001", "96.88", "18.9", "16.0x", "1,234", "2,751,714"):
        assert expected in text
    assert "[red]name[/r" in text
    assert text.index("none") < text.index("wgt")
