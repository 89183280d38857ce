"""The forms of exchange in whole training iterations, where they run beside the backward pass.

    python benchmarks/exchange_steps.py [--quick] [--write]

Workers are processes on the loopback interface with one thread each. Each has a model under DDP for every
form; they take turns in every iteration, with the same batch, so that a slow moment of the machine meets all
of them, and stay bit-identical.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from exchange import FORMS
from report import RESULTS, Place, Spread, Table, load, number, publish, read_options
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from workers import run_workers

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.wire.exchange import ExchangeForm
from taugrad.platform.data.shape import Shape
from taugrad.platform.models import build
from taugrad.platform.models.config import LeNet, ModelConfig, NetworkInNetwork

LINE = "strom(density(0.01)) | golomb_rice"
WORKERS = (2, 4)
ITERATIONS, QUICK_ITERATIONS = 60, 4
WARM_UP = 10
"""Iterations in which connections are opened, buckets are formed anew and tau is found."""


@dataclass(frozen=True)
class Case:
    """What is trained."""

    name: str
    model: ModelConfig
    side: int
    """Rows and columns of an image."""
    share: int
    """Examples of a worker's part of a batch."""
    bucket_mb: float
    """DDP's limit of a bucket; the first may have 1."""


CASES = (
    Case("LeNet", LeNet(), side=28, share=32, bucket_mb=25),
    Case("Network in Network, small buckets", NetworkInNetwork(), side=16, share=8, bucket_mb=0.5),
)
PLACE = Place(
    RESULTS.parent / "synchronization.md",
    "<!-- benchmarks/exchange_steps.py writes from here -->",
    "<!-- to here -->",
)
INTRODUCTION = (
    "A DDP training iteration (forward, backward, exchange, SGD) of workers with one thread each, gloo on "
    f"loopback, `{LINE}`: the median of {{iterations}} iterations of the slowest worker. LeNet has "
    f"{CASES[0].share} images of 28 x 28 per worker and DDP's own buckets. Network in Network has "
    f"{CASES[1].share} images of 16 x 16 x 3 and buckets of {CASES[1].bucket_mb:g} MB, so that much of the "
    "exchange can overlap with the backward pass."
)
COLUMNS = (
    *("model", "workers", "buckets", "padded ms"),
    *("exact time", "exact bytes"),
)
NOTES = (
    "Times and bytes of `exact` are relative to those of `padded`; in brackets the 10th to the 90th "
    "percentile of the ratios of single iterations.",
)


class Replica:
    """A model under DDP whose hook exchanges in one form."""

    def __init__(self, case: Case, form: ExchangeForm) -> None:
        torch.manual_seed(0)
        channels = 1 if isinstance(case.model, LeNet) else 3
        self.model = build(case.model, Shape.image(channels, case.side, case.side, 10))
        self._ddp = DistributedDataParallel(self.model, bucket_cap_mb=case.bucket_mb)
        self.state = CompressionState(self._ddp, LINE, exchange=form)
        self._ddp.register_comm_hook(self.state, compressed_allgather)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def iterate(self, inputs: Tensor, labels: Tensor) -> float:
        """One step; the seconds it took."""
        dist.barrier()
        started = perf_counter()
        self._optimizer.zero_grad()
        torch.manual_seed(0)  # dropout: the same for every form
        nn.functional.cross_entropy(self._ddp(inputs), labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return perf_counter() - started


def work(rank: int, workers: int, case: Case, iterations: int, folder: Path) -> None:
    """A worker's process; worker 0 leaves the figures in figures.json."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers)
    replicas = {form: Replica(case, form) for form in FORMS}
    channels = 1 if isinstance(case.model, LeNet) else 3
    rng = torch.Generator().manual_seed(rank)
    seconds = torch.zeros((WARM_UP + iterations, len(FORMS)), dtype=torch.float64)
    wire = torch.zeros_like(seconds)
    for i, row in enumerate(seconds):
        inputs = torch.randn((case.share, channels, case.side, case.side), generator=rng)
        labels = torch.randint(10, (case.share,), generator=rng)
        for turn in range(len(FORMS)):
            column = (i + turn) % len(FORMS)
            replica = replicas[FORMS[column]]
            row[column] = replica.iterate(inputs, labels)
            wire[i, column] = replica.state.last_step.wire_bytes
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    _must_be_alike(list(replicas.values()))
    if rank == 0:
        buckets = replicas["padded"].state.last_step.messages // (workers * (workers - 1))
        found = {"seconds": seconds[WARM_UP:].tolist(), "wire": wire[WARM_UP:].tolist(), "buckets": buckets}
        (folder / "figures.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _must_be_alike(replicas: Sequence[Replica]) -> None:
    """What is compared must have done the same work."""
    for one, other in pairwise(replicas):
        for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            if not torch.equal(mine, theirs):
                raise RuntimeError("two forms of exchange came to different weights")


def measure(case: Case, workers: int, iterations: int) -> tuple[str, ...]:
    """A row of the table."""
    with tempfile.TemporaryDirectory(prefix="taugrad-") as name:
        folder = Path(name)
        run_workers(work, (workers, case, iterations, folder), workers)
        figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    seconds, wire = np.array(figures["seconds"]), np.array(figures["wire"])
    medians, handed_over = np.median(seconds, axis=0), wire.sum(axis=0)
    others = range(1, len(FORMS))
    times = [Spread.of((seconds[:, i] / seconds[:, 0]).tolist(), medians[i] / medians[0]) for i in others]
    return (
        *(case.name, str(workers), str(figures["buckets"]), number(1000 * medians[0])),
        *(f"{each.middle:.2f} ({each.low:.2f} to {each.high:.2f})" for each in times),
        *(f"{handed_over[i] / handed_over[0]:.3f}" for i in others),
    )


def main(arguments: Sequence[str]) -> None:
    options = read_options("exchange_steps.py", "Forms of exchange in training iterations.", arguments)
    load_before, iterations = load(), QUICK_ITERATIONS if options.quick else ITERATIONS
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["OMP_NUM_THREADS"] = "1"
    crews = WORKERS[:1] if options.quick else WORKERS
    rows = [measure(case, workers, iterations) for case in CASES for workers in crews]
    table = Table("Training iterations", COLUMNS, rows, NOTES)
    introduction = INTRODUCTION.format(iterations=iterations)
    publish("exchange_steps", options, introduction, [table], load_before, PLACE)


if __name__ == "__main__":
    main(sys.argv[1:])
