"""The checkpoint engine for verl, by the package itself: its registry, its interface, its order of calls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PACKAGES = ("verl==0.9.1", "tensordict==0.10.0", "codetiming", "hydra-core", "omegaconf", "orjson", "pyvers")
PACKAGES += ("antlr4-python3-runtime==4.9.3", "dill")


def test_rollouts_have_the_weights_that_the_actor_sends(tmp_path: Path) -> None:
    packages = str(tmp_path / "packages")  # without torch, Ray and the rest, which are here
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", packages, *PACKAGES]
    if subprocess.run(install, capture_output=True, timeout=600, check=False).returncode:
        pytest.skip("verl cannot be installed here")
    paths = os.pathsep.join([packages, str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("verl_program.py")), str(tmp_path / "weights")],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "number 99 is not reached, 5 is" in done.stdout
    assert "7 files" in done.stdout
