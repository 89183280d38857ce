"""Messages over one connection and over several, on links that are fast and long.

    python benchmarks/network_connections.py [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from network import Link, Network, uniform, why_not
from report import RESULTS, Place, Spread, Table, load, number, publish, read_options

ROOT = Path(__file__).resolve().parent.parent
LINKS, QUICK_LINKS = ("1gbit,50ms", "1gbit,10ms", "100mbit,20ms"), ("1gbit,50ms",)
CONNECTIONS = (1, 2, 4, 8)
LENGTHS, QUICK_LENGTHS = (100_000, 1_000_000, 20_000_000), (100_000,)
STEPS, QUICK_STEPS = 15, 3
TIMEOUT_S = 900
PLACE = Place(
    RESULTS.parent / "network.md",
    "<!-- benchmarks/network_connections.py writes from here -->",
    "<!-- to here: connections -->",
)
INTRODUCTION = (
    "Two workers send each other a message in the way that `sync.connections` does, and have posted their "
    "buffers before it is sent. Before each exchange they are silent for 0.3 s, like workers that compute. "
    "The time is from a barrier to the message's arrival: the median of {steps} exchanges of the slower "
    "worker; in brackets the 10th to the 90th percentile. Delays are one way. Every host is a network "
    "namespace, and both share this machine's processors."
)


def cell(link: str, lengths: Sequence[int], steps: int) -> tuple[str, dict[str, list[float]]]:
    """What the probe found, and the seconds of each exchange by length and connections."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "net0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    with Network(uniform(2, Link.parse(link))) as network:
        found = network.probe()
        workers = [
            host.popen(
                [
                    *(sys.executable, str(ROOT / "benchmarks" / "network_connections_step.py")),
                    *(str(host.number), network.hosts[0].address, str(steps)),
                    *(json.dumps(CONNECTIONS), json.dumps(lengths)),
                ],
                env=environment,
                stdout=subprocess.PIPE if host.number == 0 else subprocess.DEVNULL,
                text=True,
            )
            for host in network.hosts
        ]
        told, _ = workers[0].communicate(timeout=TIMEOUT_S)
        if any(worker.wait() for worker in workers):
            raise RuntimeError(f"{link}: a worker failed")
    return str(found), json.loads(told)


def main(arguments: Sequence[str]) -> int:
    options = read_options("network_connections.py", "Messages over several connections.", arguments)
    if reason := why_not():
        print(f"no network can be made here: {reason}", file=sys.stderr)
        return 2
    load_before = load()
    steps, lengths = (QUICK_STEPS, QUICK_LENGTHS) if options.quick else (STEPS, LENGTHS)
    rows: list[tuple[str, ...]] = []
    for link in QUICK_LINKS if options.quick else LINKS:
        print(f"{link} ...", flush=True)
        probe, seconds = cell(link, lengths, steps)
        for length in lengths:
            one = float(np.median(seconds[f"{length} {CONNECTIONS[0]}"]))
            for connections in CONNECTIONS:
                taken = seconds[f"{length} {connections}"]
                middle = float(np.median(taken))
                rows.append(
                    (
                        *(link, probe, number(length / 1000), str(connections)),
                        str(Spread.of([1000 * each for each in taken])),
                        number(8e-6 * length / middle),
                        number(one / middle),
                    )
                )
    table = Table(
        "A message over several connections",
        ("link", "found by the probe", "message, KB", "connections", "ms", "Mbit/s", "times faster"),
        rows,
        ("The probe's rate is of the payload of one connection. Times faster: than one connection.",),
    )
    publish("network_connections", options, INTRODUCTION.format(steps=steps), [table], load_before, PLACE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
