"""The forms in which messages of different lengths go to all workers, against each other.

    python benchmarks/exchange.py [--quick] [--write]

Workers are processes on the loopback interface. Forms take turns in every round, so that a slow moment of
the machine meets all of them.
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

from taugrad.compressors.wire.exchange import Exchange, ExchangeForm

FORMS: tuple[ExchangeForm, ...] = ("padded", "exact")
"""Through gloo one_shot is exact."""
WORKERS = (2, 4)
SIZES = {"1 KB": 1000, "30 KB": 30_000, "1 MB": 1_000_000}
SPREADS = {"alike": 0.05, "uneven": 0.8}
"""How much shorter than the longest a message is at most."""
ROUNDS, QUICK_ROUNDS = 60, 4
CPU = torch.device("cpu")
_BUCKETS = 4
"""Messages under way at a time, as from the buckets of one backward pass."""


@dataclass(frozen=True)
class Measured:
    """One form's exchanges of one kind of message."""

    seconds: float
    """Median of a backward pass's buckets, of the slowest worker."""
    wire_bytes: float
    """Handed over by all workers, mean of a bucket."""


def main(arguments: Sequence[str]) -> int:
    options = read_options("exchange.py", "Ways for messages to all workers.", arguments)
    load_before, rounds = load(), QUICK_ROUNDS if options.quick else ROUNDS
    rows = []
    for workers in WORKERS[:1] if options.quick else WORKERS:
        for size, nbytes in SIZES.items():
            for spread, shorter in SPREADS.items():
                rows.append(
                    (str(workers), size, spread, *compared(measure(workers, nbytes, shorter, rounds)))
                )
    introduction = (
        f"Every worker's messages to all others over gloo on loopback: {_BUCKETS} buckets at a time, median "
        f"of {rounds} rounds, of the slowest worker. Lengths differ by up to 5% (alike) or 80% (uneven) of "
        "the longest, and change from round to round."
    )
    publish(
        "exchange", options, introduction, [Table("Forms of exchange", COLUMNS, rows, NOTES)], load_before
    )
    return 0


COLUMNS = (
    *("workers", "longest", "lengths", "padded ms"),
    *("exact time", "exact bytes"),
)
NOTES = ("Times and bytes of `exact` are multiples of those of `padded`.",)


def compared(found: dict[str, Measured]) -> tuple[str, ...]:
    """A row's figures."""
    padded, others = found["padded"], [found[form] for form in FORMS[1:]]
    times = [f"{each.seconds / padded.seconds:.2f}" for each in others]
    moved = [f"{each.wire_bytes / padded.wire_bytes:.2f}" for each in others]
    return f"{1000 * padded.seconds:.2f}", *times, *moved


def measure(workers: int, nbytes: int, shorter: float, rounds: int) -> dict[str, Measured]:
    """Runs the workers; by form."""
    with tempfile.TemporaryDirectory() as folder:
        task = {"workers": workers, "nbytes": nbytes, "shorter": shorter, "rounds": rounds}
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        run_workers(run_worker, (Path(folder), task), workers)
        results = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(workers)]
    found = {}
    for form in FORMS:
        slowest = np.array([result[form]["seconds"] for result in results]).max(axis=0)
        found[form] = Measured(median(slowest.tolist()), float(np.mean(results[0][form]["wire_bytes"])))
    return found


def run_worker(rank: int, folder: Path, task: dict[str, float]) -> None:
    """One worker: exchanges messages in every form, and writes down how long that took."""
    torch.set_num_threads(1)
    workers = int(task["workers"])
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    group = dist.group.WORLD
    assert group is not None
    exchanges = {form: Exchange(form) for form in FORMS}
    results: dict[str, dict[str, list[float]]] = {form: {"seconds": [], "wire_bytes": []} for form in FORMS}
    rng = np.random.default_rng(rank)
    for number in range(int(task["rounds"]) + 2):
        shares = 1 - task["shorter"] * rng.random(_BUCKETS)
        messages = [np.zeros(int(task["nbytes"] * share), np.uint8) for share in shares]
        for form, exchange in exchanges.items():
            dist.barrier()
            started = perf_counter()
            gatherings = [
                exchange.start(message, bucket, group, CPU) for bucket, message in enumerate(messages)
            ]
            for gathering in gatherings:
                gathering.send()
            for bucket, gathering in enumerate(gatherings):
                gathering.complete()
                gathering.rows()
                exchange.learn(bucket, gathering.sizes)
            seconds = perf_counter() - started
            if number >= 2:  # the first ones open connections and learn lengths
                results[form]["seconds"].append(seconds)
                results[form]["wire_bytes"].append(float(np.mean([each.wire_bytes for each in gatherings])))
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
