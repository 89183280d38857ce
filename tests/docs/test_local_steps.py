"""The script at the top of the page about local steps, run by two workers as the page has it."""

import re
from pathlib import Path

import fences
import forked
import pytest

from taugrad.platform.ports import free_port

WORKERS = 2


def test_the_page_has_the_example_which_trains_and_sends_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = next(fences.blocks("docs/how-to/local-steps.md"))
    example = (fences.ROOT / "examples" / "local_steps_script.py").read_text(encoding="utf-8")
    assert block.text == f"# examples/local_steps_script.py\n{example}"
    script, logs = tmp_path / "script.py", [tmp_path / f"{rank}.log" for rank in range(WORKERS)]
    script.write_text(block.text, encoding="utf-8")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("WORLD_SIZE", str(WORKERS))
    workers = []
    for rank, log in enumerate(logs):
        monkeypatch.setenv("RANK", str(rank))
        options = ("--steps", 40, "--fragments", 2, "--delay", 1)
        workers.append(forked.start(script, options, log, log))
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * WORKERS, logs[0].read_text()[-3000:]
    said = logs[0].read_text()
    first, last = (float(each) for each in re.findall(r"loss ([\d.]+)", said))
    assert last < first < 5
    assert 150 < float(re.findall(r"([\d.]+)x less", said)[0]) < 300
