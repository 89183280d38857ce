"""What the platform costs: its training iteration next to a bare DDP loop of the same work.

    python benchmarks/iteration.py [--quick] [--write]

Workers on the loopback interface run a block of the platform's iterations, then a block of the bare loop's,
and so on: same processes, model, batches and optimizer. Worker 0 stores metrics in MLflow as a platform
worker does, in a database of its own that is thrown away. One worker leaves a core to the process that does
so; two may not.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from report import Options, Spread, Table, load, number, publish, read_options, verdict
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workers import run_workers

from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.data.batches import epoch_order
from taugrad.platform.data.config import Synthetic
from taugrad.platform.data.feeding import Batch
from taugrad.platform.models import build
from taugrad.platform.models.config import NetworkInNetwork
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.run import CheckpointConfig
from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client, start_run
from taugrad.platform.tracking.store_process import StoreProcess
from taugrad.platform.tracking.writer import MetricWriter, PendingMetric
from taugrad.platform.training.config import Sgd, TrainingConfig
from taugrad.platform.training.optimizer import build_optimizer
from taugrad.platform.training.reporting import Progress
from taugrad.platform.training.trainer import Trainer

ALONE = "none, 1 worker"
CASES = {ALONE: 1, "none": 2, "wgt": 2, "bgt": 2, "qgt": 2}
"""How many workers each has."""
GOAL = 1.02
"""How often the bare loop's time the platform's iteration may take, without compression."""
LEAST_MS = 20
"""The goal is for iterations at least this long."""
TARGET = 0.01
"""The share of elements that are sent."""
_DELIVERY_S = 60.0
_SPLIT = (names.TIME_COMPUTE, names.TIME_COMPRESS, names.TIME_EXCHANGE, names.TIME_DECOMPRESS)

INTRODUCTION = (
    "2 workers, unless the table says otherwise, with one thread each, gloo on loopback; this machine has "
    "{cores} cores. Network in Network ({parameters:,} parameters) on images of {side} x {side} x 3, {share} "
    "of them per worker and step. Blocks of {block} iterations of the platform and of the bare loop take "
    "turns; times are measured by worker 0. The platform logs every iteration to MLflow (sqlite) at the "
    "default intervals, and its block ends only when the database has all metrics. A real run stores the "
    "last metrics during the next iterations, so it is faster. Evaluation, checkpoints, and what Ray does "
    "for them are not included."
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    side: int
    """Rows and columns of an image."""
    width_multiplier: float
    """Of the network's layers."""
    share: int
    """Examples of a worker's part of a batch."""
    block: int
    """Iterations between two changes of loop."""
    pairs: int
    """Blocks of each loop, without compression."""
    compressed_pairs: int
    """The same with a rule."""
    warm_up: int
    """Pairs of blocks that run before and do not count."""
    settling: int
    """Backward passes that fill residuals before the first of them."""

    def iterations(self, rule: str) -> int:
        """The platform's iterations, without the one that ends the epoch, and with it the run."""
        return self.block * (self.warm_up + (self.pairs if rule == "none" else self.compressed_pairs))


FULL = Sizes(16, 1.0, 8, block=200, pairs=10, compressed_pairs=5, warm_up=1, settling=300)
QUICK = Sizes(8, 0.25, 2, block=4, pairs=2, compressed_pairs=2, warm_up=1, settling=20)


@dataclass(frozen=True)
class Measured:
    """Worker 0's figures of one case."""

    parameters: int
    platform_s: list[float]
    """Seconds an iteration, by block."""
    bare_s: list[float]
    delivery_s: list[float]
    """Of each of the platform's blocks, the seconds at its end in which it waited for the database."""
    split_s: dict[str, float]
    """The trainer's own time metrics: medians, by name."""
    fraction: float
    """Elements sent over elements."""


def rule_of(case: str) -> str:
    """The kind of a case's compressor."""
    return case.partition(",")[0]


def make_spec(sizes: Sizes, case: str) -> RunSpec:
    """A run that is one epoch long, so that it is evaluated only after the last block."""
    rule = rule_of(case)
    compressor: Any = {"kind": rule} if rule == "none" else {"kind": rule, "tau": f"density({TARGET})"}
    batch = CASES[case] * sizes.share
    return RunSpec(
        experiment="benchmark",
        model=NetworkInNetwork(width_multiplier=sizes.width_multiplier),
        # The rate is so small that weights stay what they are, and with them what gradients look like.
        data=Synthetic(
            train_examples=batch * (sizes.iterations(rule) + 1),
            test_examples=CASES[case],
            channels=3,
            height=sizes.side,
            width=sizes.side,
        ),
        training=TrainingConfig(epochs=1, batch_size=batch, optimizer=Sgd(lr=1e-12)),
        compressor=compressor,
        checkpoint=CheckpointConfig(interval=sizes.block),
    )


class BareLoop:
    """The same training in as few lines as DDP needs, without a hook."""

    def __init__(self, spec: RunSpec, data: DataSet) -> None:
        torch.manual_seed(spec.seed)
        model = build(spec.model, data.shape)
        self._ddp = DistributedDataParallel(model)
        self._optimizer = build_optimizer(spec.training.optimizer, model.parameters())
        self._inputs, self._labels = data.train_inputs, data.train_labels
        order_N = epoch_order(len(data.train), spec.seed, 0)
        workers = dist.get_world_size()
        shares = order_N.reshape(-1, workers, spec.training.batch_size // workers)[:, dist.get_rank()]
        self._shares = iter(torch.from_numpy(shares.copy()))

    def run(self, iterations: int) -> float:
        """Trains on the next batches; the seconds it took."""
        started = perf_counter()
        for indices in islice(self._shares, iterations):
            self._optimizer.zero_grad()
            scores = self._ddp(self._inputs[indices])
            nn.functional.cross_entropy(scores, self._labels[indices]).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return perf_counter() - started


class TakingTurns:
    """A trainer's listener that stores metrics as a platform worker does, and times both loops.

    The trainer asks it for a checkpoint after each block, on every worker: then the bare loop has its turn.
    """

    def __init__(self, bare: BareLoop, block: int, writer: MetricWriter | None) -> None:
        self.platform_s: list[float] = []
        self.bare_s: list[float] = []
        self.delivery_s: list[float] = []
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self._bare, self._block, self._writer = bare, block, writer
        self._started = perf_counter()

    def begin(self) -> None:
        """Starts the clock of the platform's next block, on all workers at once."""
        dist.barrier()
        self._started = perf_counter()

    def stage(self, name: str) -> None:
        """Shown by Ray's side, which is not here."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Stores an iteration's metrics; worker 0 only."""
        if self._writer is not None:
            self._writer.log(iteration, metrics)
            self.logged.append((iteration, metrics))

    def progress(self, progress: Progress, *, evaluated: bool) -> None:
        """Shown by Ray's side, which is not here."""

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Happens after the last block."""

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Ends the platform's block and runs one of the bare loop; nothing is saved."""
        if iteration % self._block:
            return  # the end of the run
        trained = perf_counter()
        if self._writer is not None and not self._writer.flush(_DELIVERY_S):
            raise RuntimeError(f"MLflow took more than {_DELIVERY_S:g} s to store a block's metrics")
        delivered = perf_counter()
        dist.barrier()
        self.platform_s.append((delivered - self._started) / self._block)
        self.delivery_s.append(delivered - trained)
        self.bare_s.append(self._bare.run(self._block) / self._block)
        self.begin()

    def undelivered(self) -> list[PendingMetric]:
        """Nothing: there are no checkpoints."""
        return []


def settle(trainer: Trainer, passes: int) -> None:
    """Fills the residuals and lets the thresholds find their level, by backward passes that count nothing."""
    sync = trainer.sync
    assert isinstance(sync, HookedGradients)
    share = trainer.spec.training.batch_size // sync.workers
    for i in range(passes):
        start = (sync.workers * i + trainer.rank) * share % (len(trainer.data.train) - share)
        batch = Batch(*trainer.data.train.batch(np.arange(start, start + share), None), 1.0)
        sync.replica.backward(batch, sync.ddp)


def measure_case(case: str, sizes: Sizes, folder: Path) -> Measured:
    """One case's run, interleaved with the bare loop; every worker calls this together."""
    spec = make_spec(sizes, case)
    data = load_data(spec.data)
    writer = store = None
    notices: list[str] = []
    if dist.get_rank() == 0:
        uri = f"sqlite:///{folder}/mlflow.db"
        store = StoreProcess(uri)
        writer = MetricWriter(store, start_run(open_client(uri), spec), notify=notices.append)
    listener = TakingTurns(BareLoop(spec, data), sizes.block, writer)
    trainer = Trainer(spec, data, torch.device("cpu"), listener)
    if rule_of(case) != "none":
        settle(trainer, sizes.settling)

    listener.begin()
    trainer.fit()
    if writer is not None and store is not None:
        writer.close(_DELIVERY_S)
        store.close()
    if notices:
        raise RuntimeError("; ".join(notices))

    counted_s = slice(sizes.warm_up * sizes.block, sizes.iterations(rule_of(case)))
    counted = [metrics for _, metrics in listener.logged[counted_s] if names.TIME_COMPUTE in metrics]
    return Measured(
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        platform_s=listener.platform_s[sizes.warm_up :],
        bare_s=listener.bare_s[sizes.warm_up :],
        delivery_s=listener.delivery_s[sizes.warm_up :],
        split_s={name: float(np.median([m[name] for m in counted])) for name in _SPLIT if counted},
        fraction=float(np.mean([m[names.COMM_FRACTION] for m in counted])) if counted else 0.0,
    )


def work(rank: int, case: str, sizes: Sizes, folder: Path) -> None:
    """A worker's process; worker 0 leaves the figures in figures.json."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=CASES[case])
    measured = measure_case(case, sizes, folder)
    if rank == 0:
        (folder / "figures.json").write_text(json.dumps(asdict(measured)), encoding="utf-8")
    dist.barrier()  # nobody leaves while a collective's last reference is being dropped elsewhere
    dist.destroy_process_group()


def measure(case: str, sizes: Sizes) -> Measured:
    """The figures of one case, from processes of its own."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="taugrad-") as name:
        folder = Path(name)
        run_workers(work, (case, sizes, folder), CASES[case])
        return Measured(**json.loads((folder / "figures.json").read_text(encoding="utf-8")))


def tabulate(figures: Mapping[str, Measured], sizes: Sizes) -> list[Table]:
    """The figures as tables."""
    times: list[tuple[str, ...]] = []
    splits: list[tuple[str, ...]] = []
    for case, measured in figures.items():
        platform, bare = Spread.of(measured.platform_s), Spread.of(measured.bare_s)
        pairs = [a / b for a, b in zip(measured.platform_s, measured.bare_s, strict=True)]
        ratio = Spread.of(pairs, platform.middle / bare.middle)
        goal = verdict(ratio.middle, GOAL) if case == ALONE else ""
        times.append((case, _ms(bare.middle), _ms(platform.middle), _ratio(ratio), goal))
        splits.append((case, f"{measured.fraction:.2%}", *(_ms(measured.split_s[name]) for name in _SPLIT)))
    none = figures[ALONE]
    waiting = [
        f"{_ms(float(np.median(figures[case].delivery_s)) / sizes.block)} ms" for case in (ALONE, "none")
    ]
    long_enough = "" if 1e3 * np.median(none.bare_s) >= LEAST_MS else ", which these are not"
    return [
        Table(
            "An iteration, in ms",
            ("compressor", "bare DDP", "platform", "platform / bare DDP", "goal"),
            times,
            (
                "The ratio is that of the medians of the blocks' means; in brackets the 10th to the 90th "
                f"percentile of the ratios of neighbouring blocks ({sizes.pairs} pairs without compression, "
                f"{sizes.compressed_pairs} with it). The goal is for iterations of {LEAST_MS} ms and "
                f"more{long_enough}, where a core is free for the process that stores metrics.",
                "Without compression, waiting for MLflow at the end of a block makes up "
                f"{waiting[0]} of an iteration of 1 worker, and {waiting[1]} of 2.",
                "Most of what is left is DDP's hook: without one, DDP's own all-reduce never leaves C++; "
                "with one, Python is called twice for each bucket, and each sum is looked at for what is not "
                "finite.",
                "The bare loop never compresses. On loopback, bytes cost almost nothing, so compression has "
                "nothing to gain here, and no speed-up is expected. It pays on links that are slow for the "
                "model.",
            ),
        ),
        Table(
            "Where the platform's iteration goes, in ms",
            ("compressor", "sent", "compute", "compress", "exchange", "decompress"),
            splits,
            (
                'Medians of the trainer\'s own time/* metrics, which are means of the workers. "Exchange" is '
                "the time from handing a message over until everybody's has arrived. It includes waiting "
                "for the other worker, and part of it overlaps with the backward pass, which compute "
                "counts, so the parts need not add up.",
            ),
        ),
    ]


def _ms(seconds: float) -> str:
    return number(1e3 * seconds)


def _ratio(spread: Spread) -> str:
    return f"{spread.middle:.3f} ({spread.low:.3f} to {spread.high:.3f})"


def main(arguments: Sequence[str]) -> None:
    options: Options = read_options("iteration.py", "What the platform costs an iteration.", arguments)
    sizes = QUICK if options.quick else FULL
    load_before = load()
    figures = {case: measure(case, sizes) for case in CASES}
    introduction = INTRODUCTION.format(
        cores=len(os.sched_getaffinity(0)),
        parameters=figures["none"].parameters,
        side=sizes.side,
        share=sizes.share,
        block=sizes.block,
    )
    publish("iteration", options, introduction, tabulate(figures, sizes), load_before)


if __name__ == "__main__":
    main(sys.argv[1:])
