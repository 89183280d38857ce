"""The benchmarks run, and their tables are complete. How fast anything is, is not tested."""

import importlib
import math
import re
from ctypes.util import find_library
from pathlib import Path

import pytest
from forked import run_script
from needs import missing

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600
"""Of what depends on how busy the machine is."""

Table = list[list[str]]


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


def tables(text: str) -> list[Table]:
    """The Markdown's tables, without their headings."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [
            [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in block.splitlines()[2:]
        ]
        for block in blocks
    ]


def numbers(cell: str) -> list[float]:
    return [float(match.replace(",", "")) for match in re.findall(r"[\d.,]*\d", cell)]


def assert_spread(cell: str) -> None:
    """A middle value and a range, all positive and finite."""
    assert re.fullmatch(r"[\d.,]+ \([\d.,]+ to [\d.,]+\)", cell), cell
    values = numbers(cell)
    assert len(values) == 3
    assert all(value > 0 and math.isfinite(value) for value in values)


def test_hook(tmp_path):
    buckets, steps = tables(run("hook", tmp_path))
    methods = ["`strom(density(0.01)) | golomb_rice`", "`wgt(density(0.01))`"]
    assert [row[3] for row in buckets] == [*methods, "`linear(bits=8)`", "`linear(bits=8) | raw`"]
    for model, elements, tensors, _, floor, *figures in buckets:
        assert (model, elements, tensors) == ("GPT", "70,656", "16 in 1")
        assert numbers(floor)[0] > 0
        assert all(numbers(times)[0] > 0 for times in figures[::2])
        for (floors,), said in zip(map(numbers, figures[::2]), figures[1::2], strict=True):
            (most,) = numbers(said)
            assert floors == most or said.endswith(": met" if floors < most else ": missed")
    assert [row[1] for row in steps] == ["DDP alone", "torch's allreduce_hook", "`none`", *methods]
    assert steps[0][3] == "1.00"
    for row in steps[3:]:
        compress, blocked, exchange, decompress = (numbers(cell)[0] for cell in row[4:])
        assert min(compress, exchange, decompress) > 0
        assert blocked >= 0  # what has arrived in time is not waited for


def test_network_target(tmp_path):
    needs_network()
    result = tables(run("network_target", tmp_path / "results", "network_target_gpt"))
    half, strom, steps, times, choices, whole, slowed, texts = result
    assert (len(half), len(strom)) == (2, 2)  # trainings of each search
    names = [row[0] for row in steps]
    assert names[0] == "DDP, fp16 hook"
    assert names[1].startswith("`strom`, every ")
    assert names[-1].startswith("ours, `auto --link`: `strom`, every ")  # `auto` takes minutes
    assert {row[0] for row in times} == set(names)
    minutes = [numbers(row[1])[0] for row in times]
    assert minutes == sorted(minutes)
    counts = {row[0]: numbers(row[1])[0] for row in steps}
    assert any(len(numbers(row[6])) == 2 for row in times)  # what is close to the fastest, again
    for name, product, *_, spread, each_time, computing, peak in times:
        assert_spread(spread)
        assert min(numbers(each_time)) > 0
        assert numbers(peak)[0] > 0
        assert numbers(product)[0] == pytest.approx(counts[name] * numbers(spread)[0] / 60_000, rel=0.02)
        assert 0 < numbers(computing)[0] <= 100
    ((link, way, chosen, _, best, ratio),) = choices
    assert (link, f"ours, `auto --link`: {way}") == ("1gbit,1ms", names[-1])
    assert float(ratio) == pytest.approx(numbers(chosen)[0] / numbers(best)[0], rel=0.02)
    for name, simulated, real, _, clock, _ in whole:
        # Bits of a simulation are those of its workers, and so are its steps; 16 bits go by torch's own hook.
        assert simulated == real or name == "DDP, fp16 hook"
        assert float(clock) > 0  # evaluations are taken off, and the last one was counted
    for name, before, spread, *_ in slowed:
        assert name in names
        assert_spread(spread)
        assert numbers(before)[0] > 0
    for name, one, by_worker, *_ in texts:
        assert numbers(one)[0] == counts[name]
        assert numbers(by_worker)[0] > 0
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_over_slow_links_peers_have_the_same_search():
    target = importlib.import_module("benchmarks.network.network_target")
    half, *contenders = target.WORKLOADS["slow"].contenders
    assert half.name == "DDP, 16 bits"  # what all are compared with
    ours = contenders[-1]
    assert ours.ours
    assert max(ours.knobs["every"]) == 100
    for peer in contenders:
        assert peer.knobs["every"] in (ours.knobs["every"], (1,))  # DeMo has no local steps
        assert peer.trainings >= ours.trainings
    rates = {
        importlib.import_module("benchmarks.network").Link.parse(link).rate for link in target.SLOW_LINKS
    }
    assert {2e6, 10e6} <= rates


TABLES = {
    "adamw": 6,
    "anoosheh": 4,
    "asynchronous": 2,
    "gradients": 1,
    "hybrid": 2,
    "language": 3,
    "oland_raj": 3,
    "patches": 2,
    "strom_speech": 3,
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
    if name.startswith("network") or name == "plan":
        needs_network()
    result = tables(run(name, tmp_path / "results"))
    assert len(result) == TABLES[name]
    for table in result:
        assert table
        assert len({len(row) for row in table}) == 1
        for row in table:
            assert any(map(numbers, row))
            assert not {"nan", "inf"} & set(re.findall(r"\w+", " ".join(row)))
