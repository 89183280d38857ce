"""The package as others get it: built, installed elsewhere, used from there."""

import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from waiting import ended, said_by

ROOT = Path(__file__).parents[1]
EXPECTED = [
    "taugrad/__init__.py",
    "taugrad/cli.py",
    "taugrad/commands/train.py",
    "taugrad/py.typed",
    "taugrad/compressors/hook.py",
    "taugrad/compressors/ops/cpu/avx512.py",
    "taugrad/platform/launching/driver/train.py",
    "taugrad/platform/spec/run.py",
    "taugrad/platform/launching/worker/training.py",
    "taugrad/dashboards/console.py",
    "taugrad/search/__init__.py",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    said_by([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The wheel, installed into a folder of its own."""
    site = tmp_path_factory.mktemp("site")
    (wheel,) = built.glob("*.whl")
    said_by([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel])
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
        return said_by([sys.executable, *arguments], cwd=tmp_path, env=environment)

    code = (
        "import pathlib, platform, taugrad, taugrad.compressors as c; "
        "print(pathlib.Path(taugrad.__file__).parent); print(platform.system()); "
        "print(c.CompressionState.__name__)"
    )
    assert python("-c", code).split() == [str(installed / "taugrad"), "Linux", "CompressionState"]
    assert python("-m", "taugrad", "--version").startswith("taugrad ")


def test_help_of_each_command_needs_none_of_the_heavy_packages():
    code = (
        "import sys; from taugrad import cli\n"
        "(below,) = (action for action in cli.build_parser()._actions if action.dest == '==SUPPRESS==')\n"
        "for arguments in (['--help'], ['--version'], *([name, '--help'] for name in below.choices)):\n"
        "    try: cli.main(arguments)\n"
        "    except SystemExit as end: assert not end.code, arguments\n"
        "heavy = {'ray', 'torch', 'mlflow', 'matplotlib', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert "usage: taugrad train" in said_by([sys.executable, "-c", code])


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
    options = {"cwd": tmp_path, "env": environment}
    said_by([sys.executable, "-m", "venv", tmp_path / "bare"])
    python = tmp_path / "bare" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    said_by([python, "-m", "pip", "install", "-q", "-c", constraints, wheel], **options, timeout=600)
    installed = said_by([python, "-m", "pip", "list"], **options).lower()
    assert not {"ray", "mlflow", "optuna", "plotly", "pandas"} & set(installed.split())
    (tmp_path / "script.py").write_text(LIGHT)
    run = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    assert said_by(run, **options).split("\n")[:2] == ["5 True set()"] * 2
    answer = ended([python.with_name("taugrad"), "train", "spec.yaml"], **options)
    assert answer.returncode == 2
    assert answer.stderr == (
        "taugrad: ray is not installed, which commands need beside the library; "
        "pip install 'taugrad[platform]'\n"
    )
