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
