"""A worker's training run, from the first batch to the last.

Knows torch.distributed and DDP, and neither Ray nor MLflow: it tells a `Listener` what happens.
"""

import math
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from taugrad.compressors import Totals

from ..data import DataSet
from ..data.batches import epoch_order, worker_share
from ..models import build
from ..spec import RunSpec
from ..synchronization.base import Moment
from ..synchronization.building import build_synchronization
from ..tracking import names
from ..tracking.writer import PendingMetric
from .batch_plan import BatchPlan, Position
from .checkpoint import Saved, save_shared, save_worker
from .evaluation import Evaluation, evaluate
from .manifest import CheckpointError
from .records import IterationRecord, averaged, epoch_metrics, layer_metrics
from .replica import Examples
from .reporting import TRAINING, Listener, Progress
from .warming import warm_up

_CHECKPOINTS_A_RUN = 5


class Trainer:
    """Trains this process's workers: one of many, or all of them where they are simulated."""

    def __init__(self, spec: RunSpec, data: DataSet, device: torch.device, listener: Listener) -> None:
        """Builds model, optimizer and compression; the default process group must exist.

        Raises:
            ValueError: the model cannot be built for the data.
        """
        self.spec, self.data, self.device, self.listener = spec, data, device, listener
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()

        torch.manual_seed(spec.seed)  # the same weights on every worker
        model = build(
            spec.model,
            channels=data.channels,
            height=data.height,
            width=data.width,
            classes=data.classes,
        ).to(device)
        examples = Examples(data.train_inputs.to(device), data.train_labels.to(device))
        self.sync, self.randomness = build_synchronization(spec, model, examples)
        self._examples = examples
        self.test_inputs = data.test_inputs.to(device)
        self.test_labels = data.test_labels.to(device)

        self.plan = BatchPlan(spec.training, data.train_examples)
        self.done = 0
        """Iterations behind us."""
        self.evaluation: Evaluation | None = None
        self._records: list[IterationRecord] = []
        self._epoch_began = Totals()
        self._seconds_before = 0.0
        self._started = perf_counter()
        self._done_at_start = 0

    @property
    def model(self) -> torch.nn.Module:
        """What the workers agreed on last."""
        return self.sync.model

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
        self.listener.stage("compiling kernels")
        warm_up(self.spec, self.model, self._examples)
        self.listener.stage("first iteration")
        self._started, self._done_at_start = perf_counter(), self.done
        if self.plan.needs_untrained:
            untrained = self._evaluated()
            self.plan.measured(0, 1 - untrained.accuracy, untrained.loss)
        while self.done < self.plan.iterations:
            epoch = self.plan.position(self.done).epoch
            order = epoch_order(self.data.train_examples, self.spec.seed, epoch)
            for position in self.plan.rest_of_epoch(self.done):
                self._iterate(order, position)
                if self.done == self._done_at_start + 1:
                    self.listener.stage(TRAINING)
                if position.ends_epoch:
                    self._evaluate()
                elif len(self._records) >= self.spec.tracking.flush_interval:
                    self._flush()
                if self._is_checkpoint_due():
                    self._flush()
                    self.listener.checkpoint(self.done, self._write_checkpoint)

    def _is_checkpoint_due(self) -> bool:
        interval = self.spec.checkpoint.interval
        if interval is not None:
            return self.done % interval == 0 or self.done == self.plan.iterations
        return self.plan.ends_part(self.done, _CHECKPOINTS_A_RUN)

    def resume(self, saved: Saved) -> list[PendingMetric]:
        """Takes over a checkpoint.

        Returns:
            Metrics that had not reached the store when it was written.

        Raises:
            CheckpointError: it is of a run with another number of workers, model or optimizer.
        """
        shared, own = saved.shared, saved.own
        if shared["workers"] != self.sync.workers:
            raise CheckpointError(
                f"the checkpoint is of {shared['workers']} workers, this run has {self.sync.workers}: "
                "each worker's residual belongs to its part of the data"
            )
        try:
            self.sync.load(shared["agreed"], own["workers"])
            self.plan.load_state_dict(shared["plan"])
            self.randomness.load_state_dict(own["random"])
            self._epoch_began = Totals.from_state_dict(shared["epoch_began"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not fit this run: {error}") from error
        self.done = int(shared["done"])
        self._seconds_before = float(shared["seconds"])
        if shared["evaluation"] is not None:
            self.evaluation = Evaluation(*shared["evaluation"])
        return list(shared["undelivered"])

    def totals(self) -> dict[str, float]:
        """The run's totals, by MLflow name."""
        totals = self.sync.totals
        paper_gb, wire_gb = totals.paper_bytes / 1e9, totals.wire_bytes / 1e9
        metrics = {
            names.TOTAL_PAPER_GB: paper_gb,
            names.TOTAL_WIRE_GB: wire_gb,
            names.TOTAL_FRACTION: totals.fraction,
            names.TOTAL_COMPRESSION_RATIO: totals.compression_ratio,
            names.TOTAL_SECONDS: self.seconds,
            names.TOTAL_RECEIVED_GB: totals.received_bytes / 1e9,
            names.TOTAL_SKIPPED_STEPS: float(totals.skipped_steps),
        }
        if wire_gb:
            metrics[names.TOTAL_WIRE_MB_LOG10] = math.log10(1000 * wire_gb)
        if self.evaluation is not None and paper_gb:
            metrics[names.TOTAL_ACCURACY_PER_GB] = 100 * self.evaluation.accuracy / paper_gb
        return metrics

    def _iterate(self, order: NDArray[np.int64], position: Position) -> None:
        """One step: forward, backward, synchronization, optimizer, in the order that the mode asks for."""
        started = perf_counter()
        due = self.done < names.FIRST_ITERATIONS or self.done % self.spec.tracking.layer_interval == 0
        observe = self.rank == 0 and due
        workers = self.sync.workers
        shares = [
            worker_share(order, position.iteration, position.batch_size, rank, workers)
            for rank in self.sync.ranks
        ]
        last = self.done + 1 == self.plan.iterations
        loss = self.sync.iterate(shares, Moment(position, last, observe))
        self.done += 1
        step = self.sync.last_step
        elsewhere = step.compress_s + step.decompress_s + step.blocked_s
        compute_s = (perf_counter() - started) / len(self.sync.ranks) - elsewhere
        layers = layer_metrics(step, self.sync.statistics) if observe else {}
        so_far = self.sync.totals.wire_bytes
        self._records.append(IterationRecord(self.done, loss, compute_s, step, layers, so_far))

    def _flush(self, *, evaluated: bool = False) -> None:
        """Averages what was recorded over the workers and logs it."""
        records, self._records = self._records, []
        metrics = averaged(records, self.processes, self.sync.workers, self.device)
        if self.rank == 0 and records:
            for record, values in zip(records, metrics, strict=True):
                self.listener.log(record.number, values)
            self.listener.progress(self._progress(metrics[-1]), evaluated=evaluated)

    def _evaluated(self) -> Evaluation:
        return evaluate(self.model, self.test_inputs, self.test_labels, self.rank, self.processes)

    def _evaluate(self) -> None:
        """At the end of an epoch: how good the model is, and what the epoch sent."""
        self.evaluation = self._evaluated()
        self.plan.measured(self.done, 1 - self.evaluation.accuracy, self.evaluation.loss)
        totals = self.sync.totals
        metrics = {
            names.EVAL_ACCURACY: self.evaluation.accuracy,
            names.EVAL_LOSS: self.evaluation.loss,
            names.EVAL_EXAMPLES: float(len(self.test_labels)),
            names.EPOCH: self.plan.epochs_done(self.done),
            **epoch_metrics(totals, self._epoch_began),
        }
        self._epoch_began = totals
        self._flush(evaluated=True)
        totals_so_far = self.totals()
        if self.rank == 0:
            # Charts fill up while a run goes on; the last totals are logged when it has ended.
            live = totals_so_far if self.done < self.plan.iterations else {}
            self.listener.log(self.done, metrics | live)
        self.listener.evaluated(self.done, metrics | totals_so_far)

    def _progress(self, latest: dict[str, float]) -> Progress:
        behind = self.done - self._done_at_start
        pace = (perf_counter() - self._started) / behind if behind else 0.0
        return Progress(
            epoch=self.plan.position(self.done - 1).epoch + 1,
            epochs=self.spec.training.epochs,
            iteration=self.done,
            iterations=self.plan.iterations,
            loss=latest[names.TRAIN_LOSS],
            accuracy=self.evaluation.accuracy if self.evaluation else None,
            fraction=latest[names.COMM_FRACTION],
            wire_bytes=self.sync.totals.wire_bytes,
            seconds=self.seconds,
            seconds_left=pace * (self.plan.iterations - self.done),
        )

    def _write_checkpoint(self, folder: Path) -> None:
        own = {"workers": self.sync.own_state(), "random": self.randomness.state_dict()}
        save_worker(folder, self.rank, own)
        if self.rank == 0:
            evaluation = self.evaluation
            shared = {
                "spec": self.spec.model_dump_json(),
                "workers": self.sync.workers,
                "done": self.done,
                "seconds": self.seconds,
                "evaluation": [evaluation.accuracy, evaluation.loss] if evaluation else None,
                "agreed": self.sync.shared_state(),
                "plan": self.plan.state_dict(),
                "epoch_began": self._epoch_began.state_dict(),
                "undelivered": self.listener.undelivered(),
            }
            save_shared(folder, shared)
