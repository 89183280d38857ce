"""One line in scripts as people write them, against DDP without a hook, with two processes."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("door_process.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank, what each cell came to; all run in one group."""
    folder = tmp_path_factory.mktemp("doors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--master-addr=127.0.0.1", f"--master-port={port}", str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_method_that_sends_everything_trains_as_ddp_alone(found: list[dict[str, Any]]) -> None:
    first, second = found
    cells = [name for name in first if name != "refused"]
    assert len(cells) == 20
    for cell in cells:
        assert first[cell]["moved"] > 1, cell
        assert max(rank[cell]["off"] for rank in found) < 1e-7, cell
        if cell != "subgroup":  # each trains for itself
            assert first[cell]["end"] == second[cell]["end"], cell


def test_what_cannot_work_is_refused(found: list[dict[str, Any]]) -> None:
    refused = found[0]["refused"]
    assert refused["none"].startswith("ddp is of Sequential: it must be, or hold, a model in torch.nn")
    assert refused["no module"].startswith("ddp is of int: ")
    assert refused["two"] == "ModuleList holds 2 DDP models: make a state for each"
    assert refused["scaler"].startswith("powersgd with a scaler: ")
