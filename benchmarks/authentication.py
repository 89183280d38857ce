"""What tags cost: an exchange of messages to all with them, against the same one without.

    python benchmarks/authentication.py [--quick] [--write]

Workers are processes on the loopback interface. Both take turns in every round, so that a slow moment of the
machine meets both. Messages are in memory already: in a training, computing and compressing come on top.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from report import Table, load, publish, read_options
from workers import run_workers

from taugrad.compressors.exchange.buckets import Exchange

WORKERS = (2, 4)
SIZES = {"1 KB": 1000, "30 KB": 30_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
QUICK_SIZES = ("1 KB", "1 MB")
ROUNDS, QUICK_ROUNDS = 60, 4
WAYS = ("plain", "tagged")
CPU = torch.device("cpu")
_KEY = bytes(range(32))
_WARM_UP = 2
"""Rounds in which connections are opened and lengths are learned."""


@dataclass(frozen=True)
class Measured:
    """One way's exchanges of messages of one size."""

    seconds: list[float]
    """By round, of the slowest worker."""
    wire_bytes: int
    """Handed over by all workers."""


def main(arguments: Sequence[str]) -> int:
    options = read_options("authentication.py", "What authenticated messages cost.", arguments)
    load_before, rounds = load(), QUICK_ROUNDS if options.quick else ROUNDS
    rows = [
        (str(workers), size, *compared(measure(workers, SIZES[size], rounds)))
        for workers in (WORKERS[:1] if options.quick else WORKERS)
        for size in (QUICK_SIZES if options.quick else SIZES)
    ]
    introduction = (
        f"One message of every worker to all others over gloo on loopback, `exact`: {rounds} rounds, of the "
        "slowest worker. A worker tags its own message, and checks those of all others."
    )
    publish(
        "authentication",
        options,
        introduction,
        [Table("An exchange with tags", COLUMNS, rows, NOTES)],
        load_before,
    )
    return 0


COLUMNS = ("workers", "message", "without ms", "with tags", "bytes more")
NOTES = (
    "`with tags` is a multiple of the time without: the median of the rounds' ratios, in brackets the 10th "
    "to the 90th percentile. `bytes more` are those of all workers in one exchange.",
)


def compared(found: dict[str, Measured]) -> tuple[str, ...]:
    """A row's figures."""
    plain, tagged = (found[way] for way in WAYS)
    ratios = np.array(tagged.seconds) / np.array(plain.seconds)
    low, middle, high = np.percentile(ratios, [10, 50, 90]).tolist()
    more = tagged.wire_bytes - plain.wire_bytes
    return f"{1000 * median(plain.seconds):.2f}", f"{middle:.2f} ({low:.2f} to {high:.2f})", str(more)


def measure(workers: int, nbytes: int, rounds: int) -> dict[str, Measured]:
    """Runs the workers; by way."""
    with tempfile.TemporaryDirectory() as folder:
        task = {"workers": workers, "nbytes": nbytes, "rounds": rounds}
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        run_workers(run_worker, (Path(folder), task), workers)
        results = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(workers)]
    return {
        way: Measured(
            np.array([result[way]["seconds"] for result in results]).max(axis=0).tolist(),
            int(results[0][way]["wire_bytes"]),
        )
        for way in WAYS
    }


def run_worker(rank: int, folder: Path, task: dict[str, int]) -> None:
    """One worker: exchanges messages both ways, and writes down how long that took."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), task["workers"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=task["workers"])
    group = dist.group.WORLD
    assert group is not None
    exchanges = {"plain": Exchange("exact"), "tagged": Exchange("exact", key=_KEY)}
    for exchange in exchanges.values():
        exchange.meet(group, CPU)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    wire_bytes: dict[str, int] = {}
    message = np.random.default_rng(rank).integers(0, 256, task["nbytes"], np.uint8)
    for number in range(task["rounds"] + _WARM_UP):
        for way, exchange in exchanges.items():
            dist.barrier()
            started = perf_counter()
            gathering = exchange.start(message, 0, group, CPU)
            gathering.send()
            gathering.complete()
            _, sizes = exchange.opened(gathering, 0)
            exchange.learn(0, gathering.sizes)
            spent = perf_counter() - started
            assert set(sizes) == {task["nbytes"]}
            if number >= _WARM_UP:
                seconds[way].append(spent)
                wire_bytes[way] = gathering.wire_bytes
    found = {way: {"seconds": seconds[way], "wire_bytes": wire_bytes[way]} for way in WAYS}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
