"""Training steps whose exchange begins in the backward pass, and those where it begins after it.

    python benchmarks/network_overlap.py [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from network import Link, Network, uniform, why_not
from report import RESULTS, Place, Spread, Table, load, number, publish, read_options

ROOT = Path(__file__).resolve().parent.parent
LINKS, QUICK_LINKS = ("200mbit", "200mbit,10ms"), ("200mbit",)
HOSTS, QUICK_HOSTS = (2, 4), (2,)
LINES, QUICK_LINES = ("strom(density(0.01)) | golomb_rice", "linear(8)"), ("linear(8)",)
SYNCS: list[dict[str, Any]] = [
    {"mode": mode, "buckets": buckets, "overlap": overlap}
    for mode, buckets in (("sharded", 1), ("sharded", 4), ("parameter_server", 4))
    for overlap in (False, True)
]
QUICK_SYNCS = SYNCS[2:4]
STEPS, QUICK_STEPS = 30, 3
TIMEOUT_S = 900
PLACE = Place(
    RESULTS.parent / "network.md",
    "<!-- benchmarks/network_overlap.py writes from here -->",
    "<!-- to here: overlap -->",
)
INTRODUCTION = (
    "Training steps (forward, backward, exchange, SGD) of Network in Network, 8 images of 24 x 24 x 3 per "
    "host, one thread each: median of {steps} steps of the slowest host; in brackets the 10th to the 90th "
    "percentile. Steps with overlap and without (`sync.overlap: false`) take turns, with the same batches, "
    "and give the same weights. Delays are one way. Every host is a network namespace, and all share this "
    "machine's processors."
)


def cell(
    link: str, hosts: int, lines: Sequence[str], syncs: Sequence[dict[str, Any]], steps: int
) -> tuple[str, dict[str, Any]]:
    """What the probe found, and by line what each way came to."""
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "net0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    with Network(uniform(hosts, Link.parse(link))) as network:
        found = network.probe()
        workers = [
            host.popen(
                [
                    *(sys.executable, str(ROOT / "benchmarks" / "network_overlap_step.py")),
                    *(str(host.number), str(hosts), network.hosts[0].address, str(steps)),
                    *(json.dumps(lines), json.dumps(syncs)),
                ],
                env=environment,
                stdout=subprocess.PIPE if host.number == 0 else subprocess.DEVNULL,
                text=True,
            )
            for host in network.hosts
        ]
        told, _ = workers[0].communicate(timeout=TIMEOUT_S)
        if any(worker.wait() for worker in workers):
            raise RuntimeError(f"{link}, {hosts} hosts: a worker failed")
    return str(found), json.loads(told)


def main(arguments: Sequence[str]) -> int:
    options = read_options("network_overlap.py", "Exchanges in the backward pass.", arguments)
    if reason := why_not():
        print(f"no network can be made here: {reason}", file=sys.stderr)
        return 2
    load_before = load()
    steps, lines = (QUICK_STEPS, QUICK_LINES) if options.quick else (STEPS, LINES)
    syncs = QUICK_SYNCS if options.quick else SYNCS
    rows: list[tuple[str, ...]] = []
    for link in QUICK_LINKS if options.quick else LINKS:
        for hosts in QUICK_HOSTS if options.quick else HOSTS:
            print(f"{link}, {hosts} hosts ...", flush=True)
            probe, found = cell(link, hosts, lines, syncs, steps)
            for line, ways in found.items():
                for sync, late, early in zip(syncs[::2], ways[::2], ways[1::2], strict=True):
                    ratios = np.array(early["ms"]) / np.array(late["ms"])
                    rows.append(
                        (
                            *(link, probe, str(hosts), f"`{line}`"),
                            *(sync["mode"], str(sync["buckets"])),
                            *(str(Spread.of(each["ms"])) for each in (late, early)),
                            str(Spread.of(ratios.tolist(), np.median(early["ms"]) / np.median(late["ms"]))),
                            *(
                                number(each)
                                for each in (late["waited"], early["waited"], early["overlapped"])
                            ),
                        )
                    )
    table = Table(
        "Exchange in the backward pass",
        (
            *("link", "found by the probe", "hosts", "method", "mode", "buckets"),
            *("ms without", "ms with", "ratio", "waited without", "waited with", "overlapped"),
        ),
        rows,
        ("With and without overlap. Waited and overlapped: ms a step, mean of host 0.",),
    )
    publish("network_overlap", options, INTRODUCTION.format(steps=steps), [table], load_before, PLACE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
