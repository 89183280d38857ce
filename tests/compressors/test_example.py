"""The example takes any method, and using the compressors alone stays cheap."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "ddp_script.py"


def imported_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after a statement."""
    command = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.split())


def test_the_example_and_the_hook_import_neither_ray_nor_mlflow_nor_anything_of_a_gpu() -> None:
    statement = (
        f"import runpy, torch; runpy.run_path({str(EXAMPLE)!r}, run_name='example')\n"
        "from taugrad.compressors.ops import ops_for\n"
        "ops_for(torch.device('cpu'))"
    )
    modules = imported_by(statement)
    assert {"torch", "taugrad", "numba", "pydantic"} <= modules
    assert not {"ray", "mlflow", "sklearn", "cupy", "taugrad.compressors.ops.cuda"} & modules


def test_the_example_refuses_to_train_with_nobody() -> None:
    command = [sys.executable, EXAMPLE, "--workers", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("error: --workers 0: give 1 or more\n")


def test_a_configuration_is_read_without_torch_and_numba() -> None:
    line = "wgt(density(0.01)) | entropy | golomb_rice | huffman"
    modules = imported_by(f"from taugrad.compressors.methods import read_config; read_config({line!r})")
    assert "pydantic" in modules
    assert not {"torch", "numba", "ray", "mlflow"} & modules


def test_names_are_found_on_the_package_and_others_are_not() -> None:
    import taugrad.compressors

    for name in taugrad.compressors.__all__:
        assert getattr(taugrad.compressors, name) is not None
    with pytest.raises(AttributeError, match="Compresor"):
        _ = taugrad.compressors.Compresor
