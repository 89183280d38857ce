"""One of the two workers of benchmarks/network_connections.py.

    python benchmarks/network_connections_step.py RANK ADDRESS STEPS CONNECTIONS LENGTHS

CONNECTIONS and LENGTHS are JSON lists. Worker 0 prints the seconds of each exchange as JSON.
"""

import json
import sys
from time import perf_counter, sleep

import torch
import torch.distributed as dist

from taugrad.compressors.wire.mailbox import Expected, Mailbox

PORT = 29400
WARM_UP = 3
IDLE_S = 0.3
BUCKET = 0


def measure(connections: int, length: int, steps: int) -> list[float]:
    """Seconds of each exchange, of the slower worker."""
    assert dist.group.WORLD is not None
    mailbox = Mailbox(dist.group.WORLD, connections=connections)
    message = torch.zeros(length, dtype=torch.uint8)
    seconds = torch.zeros(steps, dtype=torch.float64)
    for step in range(-WARM_UP, steps):
        mailbox.expect(BUCKET, length)
        sleep(IDLE_S)
        dist.barrier()
        started = perf_counter()
        Expected(message, dist.group.WORLD, mailbox, BUCKET).complete()
        if step >= 0:
            seconds[step] = perf_counter() - started
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.tolist()


def main() -> None:
    rank, address, steps, connections, lengths = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{PORT}", rank=int(rank), world_size=2)
    found = {
        f"{length} {each}": measure(each, length, int(steps))
        for length in json.loads(lengths)
        for each in json.loads(connections)
    }
    if rank == "0":
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
