"""Workers in the hosts of a network: one program for all benchmarks over links.

    python -m benchmarks.network.network_workers RANK HOSTS ADDRESS WORK ASKED

WORK is one of `_work_of`, ASKED what it takes by name, as JSON. Worker 0 prints what was found as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import Network

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 3600
PORT = 29400


def start(
    network: Network, work: str, *, hear_all: bool = False, **asked: Any
) -> "list[subprocess.Popen[str]]":
    """Starts a worker in each host; what worker 0 prints, or what all print, can be read."""
    path = [str(ROOT / "src"), str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "net0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path),
    }
    place = [str(len(network.hosts)), network.hosts[0].address]
    return [
        host.popen(
            [sys.executable, "-m", __spec__.name, str(host.number), *place, work, json.dumps(asked)],
            env=environment,
            stdout=subprocess.PIPE if hear_all or host.number == 0 else subprocess.DEVNULL,
            text=True,
        )
        for host in network.hosts
    ]


def found_by(network: Network, work: str, **asked: Any) -> Any:
    """What the workers of a network have found."""
    workers = start(network, work, **asked)
    told, _ = workers[0].communicate(timeout=TIMEOUT_S)
    if any(worker.wait() for worker in workers):
        raise RuntimeError(f"{work} by {len(workers)} hosts: a worker failed")
    return json.loads(told)


def _work_of(name: str) -> Callable[..., Any]:
    if name == "exchange":
        from .network_step import exchange as work
    elif name == "sites":
        from .network_sites_step import sites as work
    elif name == "plan":
        from .plan_step import measured as work
    else:
        from .network_train import train as work
    return work


def main(rank: int, hosts: int, address: str, name: str, asked: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{PORT}", rank=rank, world_size=hosts)
    results = _work_of(name)(**asked)
    if rank == 0 and results is not None:
        print(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
