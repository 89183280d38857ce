"""Scripts of pages, put to use: the functions on the one about own scripts, and whole scripts by workers."""

import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

import fences
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch.nn.parallel import DistributedDataParallel
from waiting import ended, said_by

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
    kept = ("residuals", "velocities", "memories")
    states = [[saved.state_dict()[name] for name in kept] for saved in (state, of_whole)]
    assert str(states[0]) == str(states[1])
    page["report"](of_whole)
    assert "in 5 steps" in capsys.readouterr().out


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


# Whole scripts, with the packages of the light install alone


def light_packages() -> list[Path]:
    """What lies in site-packages of the packages that pyproject.toml requires, and of those that they do."""
    project = tomllib.loads((fences.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    paths, seen, due = [], set(), [Requirement(line) for line in project["dependencies"]]
    while due:
        requirement = due.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        package = distribution(name)
        tops = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
        paths += [Path(str(package.locate_file(top))) for top in tops]
        due += [Requirement(line) for line in package.requires or ()]
    return paths


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """Python in an environment that has nothing but taugrad and what the light install brings."""
    folder = tmp_path_factory.mktemp("light")
    said_by([sys.executable, "-m", "venv", "--without-pip", folder])
    (packages,) = folder.glob("lib/python3*/site-packages")
    for path in light_packages():
        (packages / path.name).symlink_to(path)
    (packages / "taugrad").symlink_to(fences.ROOT / "src" / "taugrad")
    return folder / "bin" / "python"


def run_light(python, workers, script, *options) -> str:
    """Runs a script by n workers, as torchrun would; returns what worker 0 printed."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(workers),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with ThreadPoolExecutor(workers) as pool:
        done = [
            pool.submit(said_by, [python, script, *options], env=variables | {"RANK": str(rank)})
            for rank in range(workers)
        ]
        first, *_ = [result.result() for result in done]
        return first


def test_the_light_install_has_none_of_the_platforms_packages_and_commands_say_so(light):
    platform = ("ray", "mlflow", "optuna", "sklearn", "matplotlib", "plotly", "scipy", "rich", "pyarrow")
    code = f"import importlib.util as u; print([name for name in {platform} if u.find_spec(name)])"
    assert said_by([light, "-I", "-c", code]).strip() == "[]"
    answer = ended([light, "-I", "-m", "taugrad", "train", "spec.yaml"])
    assert answer.returncode == 2
    assert answer.stderr == (
        "taugrad: ray is not installed, which commands need beside the library; "
        "pip install 'taugrad[platform]'\n"
    )


def example(page: str) -> Path:
    """The script that a page shows, which is a file of examples/, word for word."""
    block = next(block for block in fences.blocks(f"docs/how-to/{page}.md") if block.file)
    path = fences.ROOT / block.file
    assert block.text == f"# {block.file}\n{path.read_text(encoding='utf-8')}"
    return path


@pytest.mark.parametrize(
    ("page", "workers", "options", "fewer"),
    [
        ("fsdp2", 4, ("--steps", 20), (3.5, 5.5)),
        ("local-steps", 2, ("--steps", 40, "--fragments", 2, "--delay-steps", 1), (150, 300)),
    ],
)
def test_the_pages_example_trains_and_sends_less(light, page, workers, options, fewer):
    said = run_light(light, workers, example(page), *options)
    first, *_, last = (float(match) for match in re.findall(r"loss ([\d.]+)", said))
    assert last < first < 5
    assert fewer[0] < float(re.findall(r"([\d.]+)x less", said)[0]) < fewer[1]


def test_the_first_example_trains_two_workers_and_sends_little(light):
    said = run_light(light, 1, fences.ROOT / "examples" / "ddp_script.py", "--workers", 2)
    accuracy, sent, _, ratio = (float(figure) for figure in re.findall(r" ([\d.]+)(?:x| |\n)", said)[:4])
    assert accuracy > 0.9
    assert ratio > 5
    # 17,226 gradients of 4 bytes in 230 steps of one worker are 15.8 MB.
    assert 0.1 < sent < 15.8 / 5


def test_other_examples_run_in_the_light_install(light, tmp_path):
    examples = fences.ROOT / "examples"
    assert "changed" in run_light(light, 1, example("publish-weights"), "train", tmp_path, "--steps", 2)
    run_light(light, 1, examples / "own_methods.py")
    tried = {
        "ddp_script",
        "fsdp2_script",
        "local_steps_script",
        "publish_script",
        "own_methods",
        "members_script",
    }
    assert {path.stem for path in examples.glob("*.py")} == tried | {"serve_script"}


def test_a_member_trains_in_the_light_install(light, tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef")
    key, state = ["--key-file", tmp_path / "key"], ["--state", tmp_path / "run.db"]
    command = [light, "-m", "taugrad.compressors.coordinator", "--listen", "127.0.0.1:0", *key, *state]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    coordinator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        at = ["--coordinator", coordinator.stdout.readline().split()[-1]]
        few, saved = ["--steps", "12", "--every", "4"], ["--checkpoint", tmp_path / "a.pt"]
        script = fences.ROOT / "examples" / "members_script.py"
        for _ in range(2):  # the second time from its checkpoint
            said = run_light(light, 1, script, *at, *key, *few, *saved)
        assert re.findall(r"round (\d), members 1", said) == ["4", "5", "6"]
        assert f"goes on from {tmp_path / 'a.pt'}, which has round 3" in said
    finally:
        coordinator.kill()
        coordinator.wait()
        coordinator.stdout.close()


def test_the_trainer_of_servers_publishes_what_they_load(tmp_path):
    script = example("serve-while-training")
    few = ["--versions", "2", "--steps", "2", "--pause", "0"]
    said = said_by([sys.executable, script, tmp_path, *few])
    assert re.search("^0 The colour is red.*\n1 The colour is red", said)
    files = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json", "0000000001.patch"} <= files
