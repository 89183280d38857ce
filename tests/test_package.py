"""The package as others get it: built, installed elsewhere, used from there."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXPECTED = [
    "taugrad/__init__.py",
    "taugrad/cli.py",
    "taugrad/py.typed",
    "taugrad/compressors/hook.py",
    "taugrad/compressors/ops/cpu/avx512.py",
    "taugrad/platform/launching/command.py",
    "taugrad/platform/spec/run.py",
    "taugrad/platform/launching/worker.py",
    "taugrad/dashboards/console.py",
    "taugrad/search/__init__.py",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The wheel, installed into a folder of its own."""
    site = tmp_path_factory.mktemp("site")
    (wheel,) = built.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, timeout=120)
    return site


def test_wheel_and_sdist_hold_every_room(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert set(EXPECTED) <= set(names)
    assert "taugrad/platform/__init__.py" not in names
    assert not [name for name in names if name.startswith(("platform/", "tests/", "compressors/"))]
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = [member.name.partition("/")[2] for member in archive.getmembers()]
    assert {f"src/{name}" for name in EXPECTED} <= set(files)
    assert {"README.md", "LICENSE", "pyproject.toml"} <= set(files)


def test_the_installed_package_works_elsewhere(installed, tmp_path):
    def python(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(installed)}
        command = [sys.executable, *arguments]
        answer = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return answer.stdout

    code = (
        "import pathlib, platform, taugrad, taugrad.compressors as c; "
        "print(pathlib.Path(taugrad.__file__).parent); print(platform.system()); "
        "print(c.CompressionState.__name__)"
    )
    assert python("-c", code).split() == [str(installed / "taugrad"), "Linux", "CompressionState"]
    assert python("-m", "taugrad", "--version").startswith("taugrad ")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_needs_none_of_the_heavy_packages(arguments):
    code = (
        "import sys; from taugrad.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'ray', 'torch', 'mlflow', 'matplotlib', 'numba', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)


LIGHT = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from taugrad.compressors import compress_gradients
dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Linear(20, 4))
state = compress_gradients(ddp, "strom(density(0.1), momentum=0.9) | golomb_rice")
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    ddp(torch.randn(8, 20)).square().mean().backward()
    optimizer.step()
heavy = {"ray", "mlflow", "pandas", "matplotlib", "optuna", "plotly"} & set(sys.modules)
print(state.totals.steps, state.totals.wire_bytes > 0, heavy)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_light_install_trains_and_says_what_commands_need(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"cwd": tmp_path, "env": environment, "text": True, "capture_output": True, "timeout": 600}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "bare")], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    constraints = str(ROOT / "constraints.txt")
    install = [python, "-m", "pip", "install", "-q", "-c", constraints, str(wheel)]
    answer = subprocess.run(install, check=False, **options)
    assert answer.returncode == 0, answer.stderr
    installed = subprocess.run([python, "-m", "pip", "list"], check=True, **options).stdout.lower()
    assert not {"ray", "mlflow", "optuna", "plotly", "pandas"} & set(installed.split())
    (tmp_path / "script.py").write_text(LIGHT)
    run = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    answer = subprocess.run(run, check=False, **options)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split("\n")[:2] == ["5 True set()"] * 2
    command = [str(tmp_path / "bare" / "bin" / "taugrad"), "train", "spec.yaml"]
    answer = subprocess.run(command, check=False, **options)
    assert answer.returncode == 2
    assert answer.stderr == (
        "taugrad: ray is not installed, which commands need beside the library; "
        "pip install 'taugrad[platform]'\n"
    )
