"""The benchmarks run, and their tables are complete. How fast anything is, is not tested."""

import importlib
import re
from ctypes.util import find_library
from pathlib import Path

import pytest
from benchmarks.harness import pages
from forked import run_script
from needs import missing

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600
"""Of what depends on how busy the machine is."""


def needs_network() -> None:
    if reason := importlib.import_module("benchmarks.network").why_not():
        missing(reason)


def module_of(name: str) -> str:
    (path,) = ROOT.glob(f"benchmarks/*/{name}.py")
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def run(name: str, folder: Path, report: str = "") -> str:
    """What a quick run of a benchmark writes: a report of its name, or of another one."""
    options = ["--quick", "--write", folder]
    said = run_script(module_of(name), options, ROOT, timeout_s=TIMEOUT_S)
    (written,) = folder.iterdir()
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d-{report or name}\.md", written.name)
    text = written.read_text(encoding="utf-8")
    for table in tables(text):
        for cell in (cell for row in table for cell in row):
            assert all(word in said for word in cell.split())  # a screen has narrower columns
    return text


def tables(text: str) -> list[list[list[str]]]:
    """The Markdown's tables, without their headings."""
    return [rows for _, _, rows in pages.tables(text)]


def numbers(cell: str) -> list[float]:
    return [float(match.replace(",", "")) for match in re.findall(r"[\d.,]*\d", cell)]


def test_network_target(tmp_path):
    needs_network()
    result = tables(run("network_target", tmp_path / "results", "network_target_gpt"))
    assert len(result) == 7
    steps, times, whole = result[2], result[3], result[4]
    counts = {row[0]: numbers(row[1])[0] for row in steps}
    for name, product, *_, spread, _, _, _ in times:
        assert numbers(product)[0] == pytest.approx(counts[name] * numbers(spread)[0] / 60_000, rel=0.02)
    for name, simulated, real, *_ in whole:
        # Bits of a simulation are those of its workers, and so are its steps; 16 bits go by torch's own hook.
        assert simulated == real or name == "DDP, fp16 hook"
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


TABLES = {
    "adamw": 6,
    "asynchronous": 2,
    "churn": 4,
    "gradients": 1,
    "hook": 2,
    "tuned": 3,
    "gpu": 3,
    "hybrid": 2,
    "language": 3,
    "patches": 2,
    "strom_speech": 1,
    "synchronization": 2,
    "network_exchange": 2,
    "network_sites": 1,
    "plan": 1,
}
"""By name, the tables that a benchmark writes."""


@pytest.mark.parametrize("name", TABLES)
def test_a_benchmark_runs_and_its_tables_are_complete(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if name == "strom_speech" and find_library("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    if name.startswith("network") or name in ("churn", "plan"):
        needs_network()
    result = tables(run(name, tmp_path / "results", "cpu" if name == "gpu" else name))
    assert len(result) == TABLES[name]
    for table in result:
        assert table
        assert len({len(row) for row in table}) == 1
        for row in table:
            assert any(map(numbers, row))
            assert not {"nan", "inf"} & set(re.findall(r"\w+", " ".join(row)))


def test_churn_counts_examples_within_its_time_and_not_those_that_are_rolled_back():
    lines = [
        {"host": 0, "at": -5.0, "event": "in", "state": 0},
        {"host": 0, "at": -1.0, "event": "exchange", "state": 1, "examples": 32, "loss": 3.0},
        {"host": 0, "at": 3.0, "event": "exchange", "state": 2, "examples": 32, "loss": 2.0},
        {"host": 0, "at": 4.0, "event": "in", "state": 1},
        {"host": 0, "at": 12.0, "event": "exchange", "state": 2, "examples": 32, "loss": 1.0},
    ]
    spans = [[0, -6.0, 3.5], [0, 3.6, 20.0]]
    record = importlib.import_module("benchmarks.network.churn_record").Record
    counted = [record(10.0, rolls_back, lines, spans, []) for rolls_back in (False, True)]
    assert [run.examples() for run in counted] == [24 + 24, 24]
    assert counted[0].member_seconds() == 3.5 + 6.0
    assert counted[1].loss_at(32) == 1.0
