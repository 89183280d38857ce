"""Where compiled code is kept if no usual folder can be written; threads after a fork."""

import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest
from numba.core.caching import CacheImpl, UserProvidedCacheLocator

import taugrad.compressors
from taugrad.compressors.ops.cpu.compiling import ensure_cache
from taugrad.compressors.ops.cpu.threads import run_all


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Numba finds no folder by itself; the one for temporary files, where ours goes."""
    monkeypatch.setattr(CacheImpl, "_locator_classes", [UserProvidedCacheLocator])
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    return tmp_path


def test_a_private_folder_is_used_again_and_named(unwritable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        numba.config.CACHE_DIR = ""
        with pytest.warns(UserWarning, match="set NUMBA_CACHE_DIR to a folder"):
            folder = ensure_cache()
    assert folder == unwritable / f"taugrad-numba-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.environ["NUMBA_CACHE_DIR"] == str(folder)
    assert ensure_cache() is None, "numba has a folder now"


@pytest.mark.parametrize("planted", ["open", "link", "dead link", "file", "another user's"])
def test_what_somebody_else_may_have_put_there_is_not_used(
    planted: str, unwritable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = os.getuid() + (planted == "another user's")
    monkeypatch.setattr(os, "getuid", lambda: user)
    place, other = unwritable / f"taugrad-numba-{user}", unwritable / "other"
    if planted == "file":
        place.touch()
    elif "link" in planted:
        if planted == "link":
            other.mkdir(mode=0o700)
        place.symlink_to(other)
    else:
        place.mkdir()
        place.chmod(0o777 if planted == "open" else 0o700)
    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR"):
        folder = ensure_cache()
    assert folder is not None
    assert folder.parent == unwritable
    assert folder.name != place.name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.is_symlink()


def test_without_any_folder_a_sentence_says_what_to_set(
    unwritable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(unwritable / "missing"))
    with pytest.raises(OSError, match=r"no folder for compiled code .*; set NUMBA_CACHE_DIR"):
        ensure_cache()


def test_a_package_and_a_home_that_cannot_be_written_compile_all_the_same(tmp_path: Path) -> None:
    there = tmp_path / "site" / "taugrad"
    shutil.copytree(
        Path(taugrad.compressors.__file__).parent,
        there / "compressors",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (there / "__init__.py").touch()
    (there / "compressors" / "ops" / "cpu" / "__pycache__").touch()  # a file, which stops root, too
    program = (
        "from taugrad.compressors.ops import cpu\n"
        "from taugrad.compressors.ops.cpu import golomb_rice\n"
        "print(golomb_rice.parameter(20, 4), cpu.CACHE)"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": "/proc", "TMPDIR": str(tmp_path)}
    environment |= {"PYTHONPATH": str(there.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 ")
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1
    assert list(tmp_path.glob("taugrad-numba-*/*/*.nbi")), "nothing was kept"


def _use_threads() -> None:
    assert run_all([lambda: 1, lambda: 2], 2) == [1, 2]


def test_a_forked_process_has_threads_of_its_own() -> None:
    _use_threads()
    child = multiprocessing.get_context("fork").Process(target=_use_threads)
    child.start()
    child.join(60)
    code = child.exitcode
    child.kill()
    assert code == 0, "it waits for threads that only its parent has"
