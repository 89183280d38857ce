"""A worker's training run, from the first batch to the last.

Knows torch.distributed and DDP, and neither Ray nor MLflow: it tells a `Listener` what happens.
"""

import math
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather

from ..data import DataSet
from ..data.batches import Share, epoch_order, iterations_per_epoch, worker_share
from ..models import build
from ..spec import RunSpec
from ..tracking import names
from ..tracking.writer import PendingMetric
from .checkpoint import (
    CheckpointError,
    load_shared,
    load_worker,
    random_state,
    restore_random_state,
    save_shared,
    save_worker,
    seed_everything,
)
from .evaluation import Evaluation, evaluate
from .optimizer import build_optimizer, build_schedule
from .records import IterationRecord, averaged, layer_metrics
from .reporting import Listener, Progress

_CHECKPOINTS_A_RUN = 5


class Trainer:
    """Trains one replica; every worker of the default process group has one."""

    def __init__(self, spec: RunSpec, data: DataSet, device: torch.device, listener: Listener) -> None:
        """Builds model, optimizer and compression; the default process group must exist.

        Raises:
            ValueError: the model cannot be built for the data.
        """
        self.spec, self.data, self.device, self.listener = spec, data, device, listener
        self.rank, self.workers = dist.get_rank(), dist.get_world_size()

        torch.manual_seed(spec.seed)  # the same weights on every worker
        self.model = build(
            spec.model,
            channels=data.channels,
            height=data.height,
            width=data.width,
            classes=data.classes,
        ).to(device)
        self.ddp = DistributedDataParallel(
            self.model,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=spec.training.find_unused_parameters,
        )
        self.compression = CompressionState(self.ddp, spec.compressor)
        self.ddp.register_comm_hook(self.compression, compressed_allgather)
        self.optimizer = build_optimizer(spec.training.optimizer, self.model.parameters())
        self.schedule = build_schedule(spec.training.schedule, self.optimizer)
        seed_everything(spec.seed, self.rank)  # other dropout on every worker

        self.train_inputs = data.train_inputs.to(device)
        self.train_labels = data.train_labels.to(device)
        self.test_inputs = data.test_inputs.to(device)
        self.test_labels = data.test_labels.to(device)

        self.iterations_per_epoch = iterations_per_epoch(data.train_examples, spec.training.batch_size)
        self.iterations = self.iterations_per_epoch * spec.training.epochs
        self.done = 0
        """Iterations behind us."""
        self.evaluation: Evaluation | None = None
        self._records: list[IterationRecord] = []
        self._seconds_before = 0.0
        self._started = perf_counter()
        self._done_at_start = 0

    @property
    def seconds(self) -> float:
        """Training time so far, in this process and in those that the run went on from."""
        return self._seconds_before + perf_counter() - self._started

    def fit(self) -> None:
        """Trains to the end of the last epoch.

        Raises:
            taugrad.compressors.NonFiniteGradient: a gradient holds NaN or Inf and the spec refuses that.
            taugrad.compressors.CorruptMessage: a worker received bytes that are no valid message.
        """
        self._started, self._done_at_start = perf_counter(), self.done
        interval = self.spec.checkpoint.interval or math.ceil(self.iterations / _CHECKPOINTS_A_RUN)
        while self.done < self.iterations:
            epoch, first = divmod(self.done, self.iterations_per_epoch)
            order = epoch_order(self.data.train_examples, self.spec.seed, epoch)
            for iteration in range(first, self.iterations_per_epoch):
                share = worker_share(order, iteration, self.spec.training.batch_size, self.rank, self.workers)
                self._iterate(share)
                if self.done % self.iterations_per_epoch == 0:
                    self.schedule.step()
                    self._evaluate()
                elif len(self._records) >= self.spec.tracking.flush_interval:
                    self._flush()
                if self.done % interval == 0 or self.done == self.iterations:
                    self._flush()
                    self.listener.checkpoint(self.done, self._write_checkpoint)

    def resume(self, folder: Path) -> list[PendingMetric]:
        """Takes over a checkpoint.

        Returns:
            Metrics that had not reached the store when it was written.

        Raises:
            CheckpointError: it is damaged, or of a run with another number of workers, model or optimizer.
        """
        shared, own = load_shared(folder), load_worker(folder, self.rank)
        if shared["workers"] != self.workers:
            raise CheckpointError(
                f"the checkpoint is of {shared['workers']} workers, this run has {self.workers}: "
                "each worker's residual belongs to its part of the data"
            )
        try:
            self.model.load_state_dict(shared["model"])
            self.optimizer.load_state_dict(shared["optimizer"])
            self.schedule.load_state_dict(shared["schedule"])
            self.compression.load_state_dict(own["compression"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint in {folder} does not fit this run: {error}") from error
        restore_random_state(own["random"])
        self.done = int(shared["done"])
        self._seconds_before = float(shared["seconds"])
        if shared["evaluation"] is not None:
            self.evaluation = Evaluation(*shared["evaluation"])
        return list(shared["undelivered"])

    def totals(self) -> dict[str, float]:
        """The run's totals, by MLflow name."""
        totals = self.compression.totals
        paper_gb, wire_gb = totals.paper_bytes / 1e9, totals.wire_bytes / 1e9
        metrics = {
            names.TOTAL_PAPER_GB: paper_gb,
            names.TOTAL_WIRE_GB: wire_gb,
            names.TOTAL_FRACTION: totals.fraction,
            names.TOTAL_COMPRESSION_RATIO: totals.compression_ratio,
            names.TOTAL_SECONDS: self.seconds,
            names.TOTAL_SKIPPED_STEPS: float(totals.skipped_steps),
        }
        if self.evaluation is not None and paper_gb:
            metrics[names.TOTAL_ACCURACY_PER_GB] = 100 * self.evaluation.accuracy / paper_gb
        return metrics

    def _iterate(self, share: Share) -> None:
        """One step: forward, backward (which synchronizes), optimizer."""
        started = perf_counter()
        record_layers = self.rank == 0 and self.done % self.spec.tracking.layer_interval == 0
        if record_layers:
            self.compression.observe_next_step()

        indices = torch.from_numpy(share.indices).to(self.device)
        self.optimizer.zero_grad()
        scores = self.ddp(self.train_inputs[indices])
        loss = share.weight * nn.functional.cross_entropy(scores, self.train_labels[indices])
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            if self.compression.failure is not None:
                raise self.compression.failure from None  # DDP's own error only quotes it
            raise
        step = self.compression.last_step
        if not step.skipped:
            self.optimizer.step()

        self.done += 1
        elsewhere = step.compress_s + step.decompress_s + step.blocked_s
        layers = {}
        if record_layers:
            layers = layer_metrics(step, self.compression.percentiles)
        self._records.append(
            IterationRecord(self.done, loss.item(), perf_counter() - started - elsewhere, step, layers)
        )

    def _flush(self, *, evaluated: bool = False) -> None:
        """Averages what was recorded over the workers and logs it."""
        records, self._records = self._records, []
        metrics = averaged(records, self.workers, self.device)
        if self.rank == 0 and records:
            for record, values in zip(records, metrics, strict=True):
                self.listener.log(record.number, values)
            self.listener.progress(self._progress(metrics[-1]), evaluated=evaluated)

    def _evaluate(self) -> None:
        self.evaluation = evaluate(self.model, self.test_inputs, self.test_labels, self.rank, self.workers)
        metrics = {
            names.EVAL_ACCURACY: self.evaluation.accuracy,
            names.EVAL_LOSS: self.evaluation.loss,
            names.EPOCH: self.done / self.iterations_per_epoch,
        }
        self._flush(evaluated=True)
        if self.rank == 0:
            self.listener.log(self.done, metrics)
        self.listener.evaluated(self.done, metrics | self.totals())

    def _progress(self, latest: dict[str, float]) -> Progress:
        behind = self.done - self._done_at_start
        pace = (perf_counter() - self._started) / behind if behind else 0.0
        return Progress(
            epoch=-(-self.done // self.iterations_per_epoch),
            epochs=self.spec.training.epochs,
            iteration=self.done,
            iterations=self.iterations,
            loss=latest[names.TRAIN_LOSS],
            accuracy=self.evaluation.accuracy if self.evaluation else None,
            fraction=latest[names.COMM_FRACTION],
            wire_bytes=self.compression.totals.wire_bytes,
            seconds=self.seconds,
            seconds_left=pace * (self.iterations - self.done),
        )

    def _write_checkpoint(self, folder: Path) -> None:
        own = {"compression": self.compression.state_dict(), "random": random_state()}
        save_worker(folder, self.rank, own)
        if self.rank == 0:
            evaluation = self.evaluation
            shared = {
                "spec": self.spec.model_dump_json(),
                "workers": self.workers,
                "done": self.done,
                "seconds": self.seconds,
                "evaluation": [evaluation.accuracy, evaluation.loss] if evaluation else None,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "undelivered": self.listener.undelivered(),
            }
            save_shared(folder, shared)
