"""Scripts of pages, put to use: the functions on the one about own scripts, and whole scripts by workers."""

import os
import re
import signal

import fences
import forked
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from waiting import TIMEOUT_S, until

from taugrad.compressors.optimizer_steps import MomentumTwice, StepTracker
from taugrad.platform.ports import free_port


@pytest.fixture
def page(alone):
    """What the page's Python defines; a process group of one is there."""
    names = {}
    for block in fences.blocks("docs/how-to/own-script.md"):
        if block.language == "python":
            exec(compile(block.text, block.where, "exec"), names)
    return names


def trained(page, steps):
    """A model after some steps, its optimizer, and the state of its compressor."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    state = page["compress_scaled"](ddp, scaler)
    for number in range(steps):
        inputs = torch.randn(8, 32, generator=torch.Generator().manual_seed(number))
        page["step"](ddp, optimizer, scaler, ddp(inputs).square().mean())
    return ddp, optimizer, state


def test_a_run_that_was_saved_and_loaded_goes_on_as_if_it_had_not_been(page, tmp_path, capsys):
    page["save"](tmp_path, 0, *trained(page, 5))
    ddp, optimizer, state = trained(page, 0)
    page["load"](tmp_path, 0, ddp, optimizer, state)
    whole, _, of_whole = trained(page, 5)
    assert torch.equal(whole.module.weight, ddp.module.weight)
    assert not torch.equal(whole.module.weight, trained(page, 0)[0].module.weight)
    residuals = [of_state.feedback.state_dict() for of_state in (state, of_whole)]
    assert str(residuals[0]) == str(residuals[1])
    page["report"](of_whole)
    assert "in 5 steps" in capsys.readouterr().out


def test_a_step_whose_gradient_overflows_is_left_out_and_the_scale_halved(page):
    ddp = DistributedDataParallel(torch.nn.Linear(4, 1))
    before = ddp.module.weight.detach().clone()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    page["compress_scaled"](ddp, scaler)
    page["step"](ddp, optimizer, scaler, (ddp(torch.full((1, 4), 1e30)) * 1e30).sum())
    assert scaler.get_scale() == 512.0
    assert torch.equal(ddp.module.weight, before)


def test_momentum_on_both_sides_is_warned_of_once(page):
    ddp = DistributedDataParallel(torch.nn.Linear(32, 4))
    page["compress"](ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    StepTracker.warned = False

    def steps():
        for _ in range(3):
            ddp(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.warns(MomentumTwice, match="SGD has momentum, and strom.* has, too") as warned:
        steps()
    assert len(warned) == 1


# Whole scripts


@pytest.mark.parametrize(
    ("page", "name", "workers", "options", "fewer"),
    [
        ("fsdp2", "fsdp2_script", 4, ("--steps", 20), (3.5, 5.5)),
        (
            "local-steps",
            "local_steps_script",
            2,
            ("--steps", 40, "--fragments", 2, "--delay-steps", 1),
            (150, 300),
        ),
    ],
)
def test_the_pages_example_trains_and_sends_less(page, name, workers, options, fewer, tmp_path, monkeypatch):
    result = fences.blocks(f"docs/how-to/{page}.md")
    block = next(candidate for candidate in result if candidate.text.startswith("# examples/"))
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
    first, *_, last = (float(match) for match in re.findall(r"loss ([\d.]+)", said))
    assert last < first < 5
    assert fewer[0] < float(re.findall(r"([\d.]+)x less", said)[0]) < fewer[1]


def test_readers_and_trainers_of_the_page_may_be_killed(tmp_path):
    """The script of the page about publishing: two readers end with the same outputs, whatever was killed."""
    block = next(fences.blocks("docs/how-to/publish-weights.md"))
    example = (fences.ROOT / "examples" / "publish_script.py").read_text(encoding="utf-8")
    assert block.text == f"# examples/publish_script.py\n{example}"
    script, place, logs = tmp_path / "script.py", tmp_path / "weights", []
    script.write_text(block.text, encoding="utf-8")

    def start(*options):
        logs.append(tmp_path / f"{len(logs)}.log")
        logs[-1].touch()
        return forked.start(script, options, logs[-1], tmp_path / f"{len(logs)}.errors")

    def said(log):
        return [line.split()[:2] for line in log.read_text().splitlines() if not line.startswith("None")]

    def numbers(log):
        return [int(number) for number, _ in said(log)]

    def end(*processes):
        for process in processes:
            process.join(TIMEOUT_S)
            assert process.exitcode == 0

    # A slow reader skips versions, but comes to the last one of a trainer that has ended.
    readers = [start("read", place, "--last", 80) for _ in range(2)]
    end(start("train", place, "--steps", 10))
    until(lambda: 9 in numbers(logs[0]) and 9 in numbers(logs[1]))
    trainer = start("train", place, "--steps", 40)
    until(lambda: numbers(logs[1])[-1] > 9)
    for process in (readers.pop(), trainer):
        os.kill(process.pid, signal.SIGKILL)
        process.join(TIMEOUT_S)
    readers += [start("read", place, "--last", 80)]
    end(start("train", place, "--steps", 1))
    end(start("train", place, "--steps", 80 - numbers(logs[-1])[-1]), *readers)
    one, killed, again = (dict(said(logs[reader])) for reader in (0, 1, 4))
    assert list(one)[-1] == list(again)[-1] == "80"
    assert "9" in one.keys() & killed.keys()
    for other in (killed, again):
        assert all(one[number] == other[number] for number in one.keys() & other.keys())
