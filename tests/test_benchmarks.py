"""The benchmarks run, and their tables are complete. How fast anything is, is not tested."""

import importlib
import math
import re
from ctypes.util import find_library
from pathlib import Path

import pytest
from forked import run_script
from needs import missing

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600
TRIES = 3
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
    return [float(found.replace(",", "")) for found in re.findall(r"[\d.,]*\d", cell)]


def assert_spread(cell: str) -> None:
    """A middle value and a range, all positive and finite."""
    assert re.fullmatch(r"[\d.,]+ \([\d.,]+ to [\d.,]+\)", cell), cell
    values = numbers(cell)
    assert len(values) == 3
    assert all(value > 0 and math.isfinite(value) for value in values)


def test_hook(tmp_path: Path) -> None:
    buckets, fixed, inside, steps = tables(run("hook", tmp_path))
    methods = ["`strom(density(0.01)) | golomb_rice`", "`wgt(density(0.01))`"]
    assert [row[3] for row in buckets] == [*methods, "`linear(bits=8)`", "`linear(bits=8) | raw`"]
    for model, elements, tensors, _, floor, *figures in buckets:
        assert (model, elements, tensors) == ("LeNet", "431,080", "8 in 1")
        assert numbers(floor)[0] > 0
        assert figures[1::2] == ["", ""]  # a goal is that of larger models
        assert all(numbers(times)[0] > 0 for times in figures[::2])
    assert [row[0] for row in fixed] == [row[3] for row in buckets]
    for _, compress, _, decode, _ in fixed:  # of a bucket; a tensor's share of a short run may be noise
        assert min(numbers(compress)[0], numbers(decode)[0]) > 0
    assert [row[1] for row in inside] == methods
    assert all(numbers(cell)[0] > 0 for row in inside for cell in (row[2], row[3]))
    assert all(numbers(row[5])[0] >= 0 for row in inside)  # what has arrived in time is not waited for
    assert [row[1] for row in steps] == ["DDP alone", "torch's allreduce_hook", "`none`", *methods]
    assert steps[0][3] == "1.00"
    for row in steps[3:]:
        compress, blocked, exchange, decompress = (numbers(cell)[0] for cell in row[4:])
        assert min(compress, exchange, decompress) > 0
        assert blocked >= 0  # what has arrived in time is not waited for


def test_of_each_contender_the_best_counts(monkeypatch):
    figure = importlib.import_module("benchmarks.network.target_figure")
    seconds = {
        "DDP": 300.0,
        "PowerSGD, rank 4": math.inf,
        "DiLoCo, every 30": 180.0,
        "DiLoCo, every 4": 120.0,
    }
    kinds = {name: name.partition(",")[0] for name in seconds}
    assert figure.best_of_kinds(seconds, kinds) == {"DDP": 5.0, "DiLoCo": 2.0}


def test_the_first_screens_sentence_begins_with_the_fastest(monkeypatch, tmp_path):
    figure, times = (
        importlib.import_module(f"benchmarks.network.{name}") for name in ("target_figure", "target_times")
    )
    slow = {"DDP, 16 bits": 4.0, "DiLoCo": 2.0, "strom (ours)": 1.0, "SparseLoCo": 0.9}
    fast = {"DDP, 16 bits": 0.4, "DiLoCo": 0.5, "strom (ours)": 0.35, "SparseLoCo": 0.36}
    nin = times.Measured("loss at most 2", {"50mbit,0ms": slow, "1gbit,20ms": fast}, "a", "2026-01-02", "M")
    gpt = times.Measured("loss at most 3", {"1gbit,20ms": fast}, "b", "2026-01-01", "M")
    path = tmp_path / "times.json"
    times.keep("NiN", times.Measured("", {}, "", "", ""), path)
    times.keep("GPT", gpt, path)
    both = times.keep("NiN", nin, path)
    assert both == times.known(path) == {"NiN": nin, "GPT": gpt}

    said = figure.caption(both)
    at_50 = "at 50 Mbit/s and 0 ms, SparseLoCo 54.0 s, strom (ours) 60.0 s, DiLoCo 120 s, DDP, 16 bits 240 s"
    at_1000 = (
        "at 1 Gbit/s and 20 ms, strom (ours) 21.0 s, SparseLoCo 21.6 s, DDP, 16 bits 24.0 s, DiLoCo 30.0 s"
    )
    assert f"NiN, to loss at most 2: {at_50}; {at_1000}." in said
    assert f"GPT, to loss at most 3: {at_1000}." in said
    assert times.credit(both) == "`b`, 2026-01-01, M. `a`, 2026-01-02, M."


def test_each_contender_has_the_same_search(monkeypatch):
    search, settings = (
        importlib.import_module(f"benchmarks.network.{name}") for name in ("target_search", "target_settings")
    )
    gpt = settings.GPT
    *_, diloco, sparseloco, _, strom = settings.CONTENDERS
    for each in (diloco, sparseloco, strom):
        assert each.trainings == settings.TRAININGS
        assert {start[0] for start in each.starts} == set(settings.EVERY)
        assert len(each.starts) == len(set(each.starts)) <= each.trainings
        start = each.starts[0]
        for place, values in enumerate(each.knobs.values()):
            for value in values:  # every one makes a spec
                gpt.spec(each.setting((*start[:place], value, *start[place + 1 :])), 0)

    class Surface:
        """In place of trainings."""

        def __init__(self):
            self.found = {}

        def known(self, spec):
            return self.found.get(spec.fingerprint())

    def steps(every, rate, unsent, keep, decay):
        return 400 + 10 * every + 25 * (unsent == 0) + 25 * (keep != 128)

    surface = Surface()
    one = search.Search(gpt, sparseloco, ("50mbit,0ms", "1gbit,20ms"), surface)
    asked = []
    while (point := one.next()) is not None:
        spec, most = one.asked(point)
        asked.append((point, most))
        found = steps(*point)
        surface.found[spec.fingerprint()] = {
            "steps": found if found <= most else math.inf,
            "bytes": 1000.0,
            "within": float(most),
        }
        one.tell(point)
    # With one local step even DDP's number of steps would be too slow.
    starts = [start for start in sparseloco.starts if start[0] > 1]
    assert [point for point, _ in asked[: len(starts)]] == starts
    assert len({point for point, _ in asked}) == len(asked) == sparseloco.trainings
    assert all(gpt.ddp <= most <= gpt.longest and most % 25 == 0 for _, most in asked)
    best = min(one.found, key=lambda point: one.seconds(point, "50mbit,0ms"))
    assert best[2:4] == (0.25, 128)  # each was better by itself
    for point, _ in asked[len(starts) :]:
        # One knob was changed, to the value beside it.
        assert any(point in set(sparseloco.neighbours(other)) for other in one.found)
    measured = one.over("50mbit,0ms")
    assert measured[0] == best
    assert len({point[0] for point in measured}) == len(measured)  # one for each number of local steps
    limit = search.SLACK * one.seconds(best, "50mbit,0ms")
    assert all(one.seconds(point, "50mbit,0ms") <= limit for point in measured)


def test_network_target(tmp_path: Path) -> None:
    needs_network()
    found = tables(run("network_target", tmp_path / "results", "network_target_gpt"))
    half, strom, steps, times, choices, whole = found
    assert (len(half), len(strom)) == (2, 2)  # trainings of each search
    names = [row[0] for row in steps]
    assert names[0] == "DDP, fp16 hook"
    assert names[1].startswith("`strom`, every ")
    assert names[-1].startswith("ours, `auto --link`: `strom`, every ")  # `auto` takes minutes
    assert {row[0] for row in times} == set(names)
    minutes = [numbers(row[1])[0] for row in times]
    assert minutes == sorted(minutes)
    counts = {row[0]: numbers(row[1])[0] for row in steps}
    for name, product, *_, spread, computing in times:
        assert_spread(spread)
        assert numbers(product)[0] == pytest.approx(counts[name] * numbers(spread)[0] / 60_000, rel=0.02)
        assert 0 < numbers(computing)[0] <= 100
    ((link, way, chosen, _, best, ratio),) = choices
    assert (link, f"ours, `auto --link`: {way}") == ("1gbit,1ms", names[-1])
    assert float(ratio) == pytest.approx(numbers(chosen)[0] / numbers(best)[0], rel=0.02)
    for name, simulated, real, _, clock, _ in whole:
        # Bits of a simulation are those of its workers, and so are its steps; 16 bits go by torch's own hook.
        assert simulated == real or name == "DDP, fp16 hook"
        assert float(clock) > 0  # evaluations are taken off, and the last one was counted
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_density_follows_a_link_that_becomes_slower_and_fast_again(tmp_path: Path) -> None:
    needs_network()
    for attempt in range(TRIES):
        ((row,),) = tables(run("network_adapt", tmp_path / str(attempt)))
        assert row[:3] == ["0ms", "2", "follows"]
        assert row[-1] == "yes", "replicas differ"
        before, slow, after = (numbers(cell)[0] for cell in row[6:9])  # percent, 50 steps after a change
        assert all(0.05 <= density <= 10 for density in (before, slow, after))
        if slow < before / 2 and 2 * slow < after:
            break
    else:  # on a busy machine the link is not what limits a step, but not every time
        pytest.fail(f"densities of {before}%, {slow}%, {after}% did not follow the link")


TABLES = {
    "adamw": 1,
    "anoosheh": 4,
    "asynchronous": 2,
    "gradients": 1,
    "hybrid": 4,
    "language": 1,
    "oland_raj": 3,
    "strom_speech": 3,
    "synchronization": 4,
    "network_exchange": 2,
    "network_growth": 2,
    "network_sites": 1,
    "plan": 1,
}
"""By name, the tables that a benchmark writes."""


@pytest.mark.long
@pytest.mark.parametrize("name", TABLES)
def test_a_benchmark_runs_and_its_tables_are_complete(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if name == "strom_speech" and find_library("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    if name.startswith("network") or name == "plan":
        needs_network()
    found = tables(run(name, tmp_path / "results"))
    assert len(found) == TABLES[name]
    for table in found:
        assert table
        assert len({len(row) for row in table}) == 1
        for row in table:
            assert any(map(numbers, row))
            assert not {"nan", "inf"} & set(re.findall(r"\w+", " ".join(row)))
