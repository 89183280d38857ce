"""What the platform costs: its training iteration next to a bare DDP loop of the same work.

    python benchmarks/iteration.py [--quick] [--write]

Two workers on the loopback interface run a block of the platform's iterations, then a block of the
bare loop's, and so on: same processes, model, batches and optimizer. Worker 0 stores metrics in MLflow as
a platform worker does, in a database of its own that is thrown away.
"""

import json
import math
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
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState
from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.config import NoCompression
from taugrad.compressors.config.sparse import ThresholdedMethod
from taugrad.compressors.protocols.all_gather import AllGather
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
from taugrad.platform.tracking.writer import MetricWriter, PendingMetric
from taugrad.platform.training.config import Sgd, TrainingConfig
from taugrad.platform.training.optimizer import build_optimizer
from taugrad.platform.training.reporting import Progress
from taugrad.platform.training.trainer import Trainer

KINDS = ("none", "wgt", "bgt", "qgt")
WORKERS = 2
GOAL = 1.02
"""How often the bare loop's time the platform's iteration may take, without compression."""
LEAST_MS = 20
"""The goal is for iterations at least this long."""
TARGET = 0.01
"""The share of elements that tau is chosen for."""
_FIRST_TAU = 1e-3
_DELIVERY_S = 60.0
_SPLIT = (names.TIME_COMPUTE, names.TIME_COMPRESS, names.TIME_EXCHANGE, names.TIME_DECOMPRESS)

INTRODUCTION = (
    "{workers} workers with one thread each, gloo on loopback; Network in Network ({parameters:,} "
    "parameters) on images of {side} x {side} x 3, {share} of them a worker a step. Blocks of {block} "
    "iterations of the platform and of the bare loop take turns; the clock is worker 0's. The platform logs "
    "every iteration to MLflow (sqlite) at the default intervals, and a block of it ends only when the "
    "database has all of its metrics: stricter than a real run, which stores the last of them beside the "
    "next iterations. Evaluation, checkpoints and what Ray does for them are not in it."
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
    calibration: int
    """Iterations in which to find tau."""

    def iterations(self, kind: str) -> int:
        """The platform's iterations, without the one that ends the epoch, and with it the run."""
        return self.block * (self.warm_up + (self.pairs if kind == "none" else self.compressed_pairs))


FULL = Sizes(16, 1.0, 8, block=100, pairs=15, compressed_pairs=6, warm_up=1, calibration=300)
QUICK = Sizes(8, 0.25, 2, block=4, pairs=2, compressed_pairs=2, warm_up=1, calibration=20)


@dataclass(frozen=True)
class Measured:
    """Worker 0's figures for one compressor."""

    parameters: int
    tau: float
    """0 where nothing is thresholded."""
    platform_s: list[float]
    """Seconds an iteration, by block."""
    bare_s: list[float]
    delivery_s: list[float]
    """Of each of the platform's blocks, the seconds at its end in which it waited for the database."""
    split_s: dict[str, float]
    """The trainer's own time metrics: medians, by name."""
    fraction: float
    """Elements sent over elements."""


def make_spec(sizes: Sizes, kind: str) -> RunSpec:
    """A run that is one epoch long, so that it is evaluated only after the last block."""
    compressor: Any = {"kind": kind} if kind == "none" else {"kind": kind, "tau": _FIRST_TAU}
    batch = WORKERS * sizes.share
    return RunSpec(
        experiment="benchmark",
        model=NetworkInNetwork(width_multiplier=sizes.width_multiplier),
        # The rate is so small that weights stay what they are, and a tau keeps the fraction it began with.
        data=Synthetic(
            train_examples=batch * (sizes.iterations(kind) + 1),
            test_examples=WORKERS,
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
        shares = order_N.reshape(-1, WORKERS, spec.training.batch_size // WORKERS)[:, dist.get_rank()]
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


def find_tau(trainer: Trainer, iterations: int) -> float:
    """Sets the trainer's tau so that about TARGET of the elements are sent, and fills its residuals.

    Follows the fraction over some backward passes of the trainer's own replica, in ever smaller steps: large
    ones would make it swing around the target and overshoot its mean. All workers see the same fraction,
    and so come to the same tau.
    """
    sync = hooked(trainer)
    config = sync.state.config
    assert isinstance(config, ThresholdedMethod)
    assert isinstance(config.tau, float)
    share = trainer.spec.training.batch_size // WORKERS
    tau, taus = config.tau, []
    for i in range(iterations):
        set_tau(sync.state, config, tau)
        start = (WORKERS * i + trainer.rank) * share % (len(trainer.data.train) - share)
        batch = Batch(*trainer.data.train.batch(np.arange(start, start + share), None), 1.0)
        sync.replica.backward(batch, sync.ddp)
        taus.append(tau)
        excess = float(np.clip(sync.last_step.fraction / TARGET - 1, -1, 1))
        tau *= math.exp(0.4 * excess / (1 + i / 15))
    tau = float(np.exp(np.mean(np.log(taus[-iterations // 3 :]))))
    set_tau(sync.state, config, tau)
    return tau


def hooked(trainer: Trainer) -> HookedGradients:
    """The trainer's synchronization, which is that of the default mode."""
    assert isinstance(trainer.sync, HookedGradients)
    return trainer.sync


def set_tau(state: CompressionState, config: ThresholdedMethod, tau: float) -> None:
    """Replaces the method of a state, which has one for life everywhere but here."""
    changed = config.model_copy(update={"tau": tau})
    state.config = changed
    assert isinstance(state._protocol, AllGather)
    state._protocol._compressor = Compressor(changed)


def measure_kind(kind: str, sizes: Sizes, folder: Path) -> Measured:
    """One compressor's run, interleaved with the bare loop; every worker calls this together."""
    spec = make_spec(sizes, kind)
    data = load_data(spec.data)
    writer = None
    notices: list[str] = []
    if dist.get_rank() == 0:
        client = open_client(f"sqlite:///{folder}/mlflow.db")
        writer = MetricWriter(client, start_run(client, spec), notify=notices.append)
    listener = TakingTurns(BareLoop(spec, data), sizes.block, writer)
    trainer = Trainer(spec, data, torch.device("cpu"), listener)
    tau = 0.0 if isinstance(spec.compressor, NoCompression) else find_tau(trainer, sizes.calibration)

    listener.begin()
    trainer.fit()
    if writer is not None:
        writer.close(_DELIVERY_S)
    if notices:
        raise RuntimeError("; ".join(notices))

    counted = [
        metrics
        for iteration, metrics in listener.logged
        if sizes.warm_up * sizes.block < iteration <= sizes.iterations(kind) and names.TIME_COMPUTE in metrics
    ]
    return Measured(
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        tau=tau,
        platform_s=listener.platform_s[sizes.warm_up :],
        bare_s=listener.bare_s[sizes.warm_up :],
        delivery_s=listener.delivery_s[sizes.warm_up :],
        split_s={name: float(np.median([m[name] for m in counted])) for name in _SPLIT if counted},
        fraction=float(np.mean([m[names.COMM_FRACTION] for m in counted])) if counted else 0.0,
    )


def work(rank: int, sizes: Sizes, folder: Path) -> None:
    """A worker's process: every compressor in turn; worker 0 leaves the figures in figures.json."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORKERS)
    figures = {kind: asdict(measure_kind(kind, sizes, folder)) for kind in KINDS}
    if rank == 0:
        (folder / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
    dist.barrier()  # nobody leaves while a collective's last reference is being dropped elsewhere
    dist.destroy_process_group()


def measure(sizes: Sizes) -> dict[str, Measured]:
    """All figures, by compressor."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="taugrad-") as name:
        folder = Path(name)
        spawn(work, (sizes, folder), nprocs=WORKERS)  # type: ignore[no-untyped-call]
        figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    return {kind: Measured(**values) for kind, values in figures.items()}


def tabulate(figures: Mapping[str, Measured], sizes: Sizes) -> list[Table]:
    """The figures as tables."""
    times: list[tuple[str, ...]] = []
    splits: list[tuple[str, ...]] = []
    for kind, measured in figures.items():
        platform, bare = Spread.of(measured.platform_s), Spread.of(measured.bare_s)
        pairs = [a / b for a, b in zip(measured.platform_s, measured.bare_s, strict=True)]
        ratio = Spread.of(pairs, platform.middle / bare.middle)
        goal = verdict(ratio.middle, GOAL) if kind == "none" else ""
        times.append((kind, _ms(bare.middle), _ms(platform.middle), _ratio(ratio), goal))
        tau = number(measured.tau) if measured.tau else ""
        splits.append(
            (kind, tau, f"{measured.fraction:.2%}", *(_ms(measured.split_s[name]) for name in _SPLIT))
        )
    none = figures["none"]
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
                f"more{long_enough}.",
                "Without compression, waiting for MLflow at the end of a block makes up "
                f"{_ms(float(np.median(none.delivery_s)) / sizes.block)} ms of an iteration.",
                "The bare loop never compresses. On loopback bytes cost next to nothing: compression has "
                "nothing to gain here, and no speed-up is expected. It pays on links that are slow for the "
                "model.",
            ),
        ),
        Table(
            "Where the platform's iteration goes, in ms",
            ("compressor", "tau", "sent", "compute", "compress", "exchange", "decompress"),
            splits,
            (
                "Medians of the trainer's own time/* metrics, which are means of the workers. Exchange lasts "
                "from handing a message over to having everybody's. It includes waiting for the other "
                "worker, and some of it runs beside the backward pass, which compute counts: the parts need "
                "not add up.",
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
    figures = measure(sizes)
    introduction = INTRODUCTION.format(
        workers=WORKERS,
        parameters=figures["none"].parameters,
        side=sizes.side,
        share=sizes.share,
        block=sizes.block,
    )
    publish("iteration", options, introduction, tabulate(figures, sizes), load_before)


if __name__ == "__main__":
    main(sys.argv[1:])
