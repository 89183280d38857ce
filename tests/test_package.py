"""The package as others get it: built, installed elsewhere, used from there."""

import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from waiting import said_by

ROOT = Path(__file__).parents[1]
ROOMS = ("compressors", "platform", "search", "dashboards")
EXPECTED = {f"taugrad/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
EXPECTED |= {"taugrad/__init__.py", "taugrad/cli.py", "taugrad/commands/train.py", "taugrad/py.typed"}


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
    assert set(names) >= EXPECTED
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
        "heavy = {'ray', 'torch', 'mlflow', 'matplotlib', 'numba', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert "usage: taugrad train" in said_by([sys.executable, "-c", code])
