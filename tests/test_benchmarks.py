"""The benchmarks run, and their tables are complete. How fast anything is, is not tested."""

import math
import re
import subprocess
import sys
from pathlib import Path

from taugrad.compressors.codecs.registry import CODECS
from taugrad.compressors.kernels import avx512

ROOT = Path(__file__).resolve().parent.parent
RULES = ("wgt", "bgt", "qgt")
TIMEOUT_S = 150

Table = list[list[str]]


def run(name: str, folder: Path) -> str:
    """What a quick run of a benchmark writes."""
    command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--write", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (written,) = folder.iterdir()
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d-{name}\.md", written.name)
    text = written.read_text(encoding="utf-8")
    for table in tables(text):
        for cell in (cell for row in table for cell in row):
            assert cell in done.stdout
    return text


def tables(text: str) -> list[Table]:
    """The Markdown's tables, without their headings."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
        for block in blocks
    ]


def first_column(table: Table) -> list[str]:
    return [row[0] for row in table]


def numbers(cell: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"[\d.,]*\d", cell)]


def assert_spread(cell: str) -> None:
    """A middle value and a range, all positive and finite."""
    assert re.fullmatch(r"[\d.,]+ \([\d.,]+ to [\d.,]+\)", cell), cell
    values = numbers(cell)
    assert len(values) == 3
    assert all(value > 0 and math.isfinite(value) for value in values)


def test_threshold(tmp_path: Path) -> None:
    text = run("threshold", tmp_path)
    for fact in (
        "- Command: `python benchmarks/threshold.py --quick",
        "- Date: ",
        "- Machine: ",
        "- Load before: ",
    ):
        assert fact in text
    passes, messages = tables(text)

    expected = ["torch add_, the floor", "NumPy in-place add"]
    if avx512.supported():
        expected += [f"{rule}, AVX-512" for rule in RULES]
    expected += [f"{rule}, portable" for rule in RULES] + [f"{rule}, torch operations" for rule in RULES]
    expected.append("torch.topk of the magnitudes, nothing else")
    assert first_column(passes) == expected
    floor, *contenders = passes
    assert all(numbers(cell)[0] > 0 and cell.endswith(" ms") for cell in floor[1:4])
    for name, *ratios, goal in contenders:
        for ratio in ratios:
            assert_spread(ratio)
        wanted = r"at most 1\.20: (met|missed)" if name.endswith("AVX-512") else ""
        assert re.fullmatch(wanted, goal)

    assert [row[:2] for row in messages] == [[rule, codec.name] for rule in RULES for codec in CODECS]
    for *_, write, read, bits in messages:
        assert_spread(write)
        assert_spread(read)
        assert numbers(bits)[0] > 0


def test_iteration(tmp_path: Path) -> None:
    text = run("iteration", tmp_path)
    times, splits = tables(text)
    assert first_column(times) == ["none", *RULES]
    for kind, bare, platform, ratio, goal in times:
        assert numbers(bare)[0] > 0
        assert numbers(platform)[0] > 0
        assert_spread(ratio)
        assert re.fullmatch(r"at most 1\.02: (met|missed)" if kind == "none" else "", goal)

    assert first_column(splits) == ["none", *RULES]
    for kind, tau, sent, *parts in splits:
        assert 0 < numbers(sent)[0] <= 100
        compute, compress, exchange, decompress = (numbers(part)[0] for part in parts)
        assert min(compute, exchange) > 0
        assert (tau == "") == (compress == 0) == (decompress == 0) == (kind == "none")
