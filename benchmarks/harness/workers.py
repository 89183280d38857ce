"""Workers in a process group over gloo: processes of this machine, or one in each host of a network.

    python -m benchmarks.harness.workers FOLDER RANK

FOLDER/asked.json says what `run_workers` was given.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from time import sleep
from typing import Any

import torch
import torch.distributed as dist

from taugrad.platform.spec import RunSpec

from ..network.network import Host
from .report import say

ROOT = Path(__file__).resolve().parents[2]
PATHS = (ROOT / "src", ROOT, ROOT / "benchmarks/network")
"""The last one is for data and models of specs whose trainings are kept."""


def run_workers(
    work: Callable[..., Any], asked: Sequence[Mapping[str, Any]], workers: int, hosts: Sequence[Host] = ()
) -> list[Any]:
    """What `work(**arguments)` returns on worker 0 for each of `asked`, one after the other.

    Args:
        work: a function of a module; what it takes and returns can be JSON.
        asked: arguments by name.
        workers: how many processes do it together; they end with this call.
        hosts: where they run; without any, here.

    Raises:
        RuntimeError: one of them failed; the others were ended.
    """
    place = f"{sys.modules[work.__module__].__spec__.name}:{work.__qualname__}"  # type: ignore[union-attr]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "net0" if hosts else "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*map(str, PATHS), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
        Path(folder, "asked.json").write_text(json.dumps([place, workers, list(asked)]), encoding="utf-8")
        commands = [[sys.executable, "-m", __spec__.name, folder, str(rank)] for rank in range(workers)]
        if hosts:
            commands = [host.command(command) for host, command in zip(hosts, commands, strict=True)]
        processes = [subprocess.Popen(command, env=environment) for command in commands]
        try:
            while (codes := {process.poll() for process in processes}) != {0}:
                if codes - {0, None}:
                    raise RuntimeError(f"{place} by {workers} workers: a worker failed")
                sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        results: list[Any] = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    return results


def train_by(train: Callable[[str], dict[str, float]], text: str) -> dict[str, float]:
    """What worker 0 found of a spec; by this process, which is in a group of one, where one is enough."""
    processes = RunSpec.model_validate_json(text).processes
    results: dict[str, float] = (
        train(text) if processes == 1 else run_workers(train, [{"text": text}], processes)[0]
    )
    return results


def main(folder: Path, rank: int) -> None:
    """Does what was asked, as one of the workers."""
    place, workers, asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers)
    work, found = resolve_name(place), []
    for arguments in asked:
        found.append(work(**arguments))
        gc.collect()  # closes connections
        dist.barrier()  # nobody goes on while a collective's last reference is being dropped elsewhere
        if rank == 0 and len(asked) > 1:
            say(f"  {len(found)} of {len(asked)}")
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
