"""The scripts at the top of pages, run by workers as the pages have them."""

import re

import fences
import forked
import pytest
from waiting import TIMEOUT_S

from taugrad.platform.ports import free_port


@pytest.mark.parametrize(
    ("page", "name", "workers", "options", "fewer"),
    [
        ("fsdp2", "fsdp2_script", 4, ("--steps", 20), (3.5, 5.5)),
        ("local-steps", "local_steps_script", 2, ("--steps", 40, "--fragments", 2, "--delay", 1), (150, 300)),
    ],
)
def test_the_pages_example_trains_and_sends_less(page, name, workers, options, fewer, tmp_path, monkeypatch):
    block = next(fences.blocks(f"docs/how-to/{page}.md"))
    example = (fences.ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert block.text == f"# examples/{name}.py\n{example}"
    script, logs = tmp_path / "script.py", [tmp_path / f"{rank}.log" for rank in range(workers)]
    script.write_text(block.text, encoding="utf-8")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("WORLD_SIZE", str(workers))
    started = []
    for rank, log in enumerate(logs):
        monkeypatch.setenv("RANK", str(rank))
        started.append(forked.start(script, options, log, log))
    for worker in started:
        worker.join(TIMEOUT_S)
    assert [worker.exitcode for worker in started] == [0] * workers, logs[0].read_text()[-3000:]
    said = logs[0].read_text()
    first, *_, last = (float(each) for each in re.findall(r"loss ([\d.]+)", said))
    assert last < first < 5
    assert fewer[0] < float(re.findall(r"([\d.]+)x less", said)[0]) < fewer[1]
