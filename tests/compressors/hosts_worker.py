"""One worker of test_hosts.py: `python hosts_worker.py RANK ADDRESS FILE`."""

import sys
from datetime import timedelta

import numpy as np
import torch.distributed as dist
import zmq

from taugrad.compressors.exchange.mesh import Mesh


def main(rank: int, address: str, file: str) -> None:
    """Connects to the other worker by a store at an address; writes where it listened, and what arrived."""
    store = {"init_method": f"tcp://{address}:29611", "rank": rank, "world_size": 2}
    dist.init_process_group("gloo", **store, timeout=timedelta(seconds=60))
    mesh = Mesh(most_bytes=1 << 20)
    mesh.send(1 - rank, "rank", np.array([rank], np.uint8))
    arrived = mesh.receive(1 - rank, "rank").result(60).tolist()
    endpoint = mesh._router.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    with open(file, "w") as out:
        out.write(f"{endpoint.decode().rpartition(':')[0]} {arrived}")
    mesh.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
