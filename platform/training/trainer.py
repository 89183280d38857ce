"""A worker's training run, from the first batch to the last.

It uses torch.distributed and DDP, but neither Ray nor MLflow: it reports to a `Listener`.
"""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from numba.core import event

from taugrad.compressors import Totals
from taugrad.compressors.spans import RECORDER

from ..data import Data, Draw
from ..data.batch_plan import BatchPlan, Position
from ..data.feeding import Batch, feed
from ..models.building import build
from ..spec import RunSpec
from ..spec.synchronization import WeightsSync, real
from ..spec.workers import why_no_other_number
from ..synchronization.build import build_synchronization
from ..synchronization.ledger import Iteration
from ..synchronization.quorum.free import Decide
from ..synchronization.synchronization import StepContext
from ..tasks import build_task
from ..tasks.metric import ACCURACY, LOSS
from ..tracking import names
from .checkpoint import SHARED, Saved, save, worker_file
from .evaluation import Evaluation, evaluate
from .manifest import CheckpointError
from .pretraining import pretrain
from .publishing import Publisher
from .recording import Recording
from .records import averaged, epoch_metrics
from .reporting import TRAINING, Listener, RunProgress

_COMPILING = event.TimingListener()
event.register("numba:compile", _COMPILING)
_CHECKPOINTS_A_RUN = 5
_SHOW_S = 5.0
"""Slow iterations are shown this often, without waiting for the next average over the workers."""


class Trainer:
    """Trains this process's workers: one of many, or all of them if they are simulated."""

    def __init__(
        self,
        spec: RunSpec,
        data: Data,
        device: torch.device,
        listener: Listener,
        *,
        resumes: bool = False,
        decide: Decide | None = None,
    ) -> None:
        """Builds model, optimizer and compression on `device`; the default process group must exist.

        `resumes`: `resume` follows, which loads other weights; layers are then not pre-trained. `decide`
        closes rounds with a quorum; by default the process group's store does. Raises ValueError: the model
        cannot be built for the data, or the task is not one of them.
        """
        self.spec, self.data, self.device, self.listener = spec, data, device, listener
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()

        torch.manual_seed(spec.seed)  # the same weights on every worker
        model = build(spec.model, data.shape).to(device)
        self.task = build_task(spec.task, data.shape)
        if spec.training.pretraining.iterations and not resumes:
            assert isinstance(model, torch.nn.Sequential)  # the spec's models that may be pre-trained are
            listener.stage("pre-training")
            pretrain(model, self.task, data.train, spec.training.pretraining, spec.seed, device)
        self.sync, self.randomness = build_synchronization(spec, model, self.task, device, decide)
        self.plan = BatchPlan(spec.training, len(data.train))
        self.done = 0
        """Iterations that are done."""
        self.interrupted = False
        """Whether the run ended before its end, with a checkpoint."""
        self.evaluation: Evaluation | None = None
        self._publisher: Publisher | None = None
        self._records: list[Iteration] = []
        real = self.processes == self.sync.workers  # simulated workers do not work side by side
        self.recording = Recording(spec.tracking.timeline if real else 0)
        self._epoch_began = Totals()
        self._seconds_before = 0.0
        self._started = _clock()
        self._shown = _clock()
        self._done_at_start = 0
        self._first_done = self._shown

    @property
    def model(self) -> torch.nn.Module:
        """What the workers agreed on last."""
        return self.sync.model

    @property
    def seconds(self) -> float:
        """Training time so far, in this process and in those that the run continued from.

        Without the time in which kernels are compiled, which happens once on a machine.
        """
        return self._seconds_before + _clock() - self._started

    def fit(self) -> None:
        """Trains to the end of the run, until its metrics reach `training.until`, or until it is interrupted.

        Raises taugrad.compressors.NonFiniteGradient: a gradient holds NaN or Inf and the spec refuses that;
        taugrad.compressors.CorruptMessage: a worker received bytes that are not a valid message.
        """
        self.listener.stage("first iteration")
        self._started, self._done_at_start = _clock(), self.done
        if self.plan.needs_untrained:
            self._measure(self.evaluated())
        with self._publishing():
            while self.done < self.plan.iterations and not (self.reached or self.interrupted):
                self._train_epoch()

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Publishes weights inside, and the last ones at the end."""
        wanted = self.spec.publish
        if not wanted.path:
            yield
            return
        if self.rank == 0:
            self._publisher = Publisher(wanted.path, wanted.full_every, wanted.keep)
        try:
            yield
            self._publish(last=True)
            self._log_published(wait=True)
        finally:
            if self._publisher is not None:
                self._publisher.close()

    def _publish(self, *, last: bool = False) -> None:
        """Begins to write what the workers agreed on; all processes call this together."""
        self.sync.sync_model()
        self._log_published(wait=last)
        if self._publisher is not None:
            self._publisher.publish(self.done, self.model)

    def _log_published(self, *, wait: bool) -> None:
        for iteration, metrics in self._publisher.collect(wait=wait) if self._publisher else ():
            self.listener.log(iteration, metrics)

    def _train_epoch(self) -> None:
        """The current epoch, or what is left of it."""
        positions = list(self.plan.rest_of_epoch(self.done))
        draw = Draw(self.spec.seed, positions[0].epoch)
        ranks, workers = self.sync.ranks, self.sync.workers
        with closing(feed(self.data.train, draw, positions, ranks, workers, self.device)) as coming:
            for position in positions:
                self._iterate(coming, position)
                if self.done == self._done_at_start + 1:
                    self._first_done = self._shown = _clock()
                    self.listener.stage(TRAINING)
                free = self._records[-1].always_under_way
                drained = self.plan.is_evaluation_due(self.done)
                if drained:
                    self._evaluate()
                elif len(self._records) % self.spec.tracking.flush_interval == 0:
                    if free:
                        self._show_own()
                    else:
                        self._flush()
                elif self.rank == 0 and _clock() - self._shown >= _SHOW_S:
                    self._show_own()
                due = self._is_checkpoint_due()
                self.interrupted = self.listener.ends_after(self.done)
                if due or self.interrupted:
                    self.sync.sync_model()
                    self._flush()
                    self.listener.checkpoint(self.done, self._write_checkpoint)
                    drained = True
                # Publishing would make workers wait that do not otherwise: it would change their weights.
                if self.spec.publish.path and (drained if free else self.done % self.spec.publish.every == 0):
                    self._publish()
                if self.reached or self.interrupted:
                    return

    @property
    def reached(self) -> bool:
        """Whether every metric has reached `training.until`, if it is set."""
        wanted, evaluation = self.spec.training.until, self.evaluation
        if not wanted or evaluation is None:
            return False
        metrics = {metric.name: metric for metric in self.task.metrics}
        return all(
            evaluation[name] == value or metrics[name].is_better(evaluation[name], value)
            for name, value in wanted.items()
        )

    def _is_checkpoint_due(self) -> bool:
        interval = self.spec.checkpoint.interval
        if self.reached:
            return True
        if interval is not None:
            return self.done % interval == 0 or self.done == self.plan.iterations
        return self.plan.ends_part(self.done, _CHECKPOINTS_A_RUN)

    def resume(self, saved: Saved) -> list[str]:
        """Restores a checkpoint; returns the lines of the journal that were not in MLflow at that time.

        Raises CheckpointError: it is of a run with another number of workers, model or optimizer, or with
        other data, of those that have a fingerprint.
        """
        shared, local_state = saved.shared, saved.local_state
        if shared.get("data", self.data.fingerprint) != self.data.fingerprint:
            files = f"the files of data.kind = {self.spec.data.kind} changed"
            raise CheckpointError(f"the checkpoint is of other examples: {files}")
        try:
            if shared["workers"] == self.sync.workers:
                self.sync.load(shared["agreed"], local_state["workers"])
                self.randomness.load_state_dict(local_state["random"])
            else:
                self._reshard(saved)
            self.plan.load_state_dict(shared["plan"])
            self._epoch_began = Totals.from_state_dict(shared["epoch_began"])
        except CheckpointError:
            raise
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not fit this run: {error}") from error
        self.done = int(shared["done"])
        self._seconds_before = float(shared["seconds"])
        if shared["evaluation"] is not None:
            self.evaluation = dict(shared["evaluation"])
        return list(shared["undelivered"])

    def _reshard(self, saved: Saved) -> None:
        """Restores what another number of workers saved; their random numbers are dropped.

        Raises CheckpointError: this is not allowed, or the states do not fit.
        """
        reason = why_no_other_number(self.spec.sync, self.spec.compressor, self.spec.workers)
        try:
            if reason:
                raise ValueError(reason)
            self.sync.reshard(saved.shared["agreed"], [state["workers"] for state in saved.every])
        except ValueError as error:
            former, now = saved.shared["workers"], self.sync.workers
            raise CheckpointError(
                f"the checkpoint is of {former} workers, this run has {now}: {error}"
            ) from error

    def last_evaluation(self) -> dict[str, float]:
        """The last evaluation, by MLflow name; also in a run that was over when it resumed."""
        evaluation = self.evaluation or {}
        return {names.eval_metric(name): value for name, value in evaluation.items()} | {
            names.EVAL_EXAMPLES: float(len(self.data.test)),
            names.EPOCH: self.plan.epochs_done(self.done),
        }

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
        if self.evaluation is not None and paper_gb and ACCURACY.name in self.evaluation:
            metrics[names.TOTAL_ACCURACY_PER_GB] = 100 * self.evaluation[ACCURACY.name] / paper_gb
        if self.reached:
            metrics[names.TOTAL_ITERATIONS_TO_TARGET] = float(self.done)
        return metrics

    def _iterate(self, coming: Iterator[list[Batch]], position: Position) -> None:
        """One step: forward, backward, synchronization, optimizer, in the order of the mode."""
        started = _clock()
        last = self.done + 1 == self.plan.iterations
        context = StepContext(position, last=last, observe=self.rank == 0 and self._is_observed(position))
        with self.recording.step(self.done - self._done_at_start, self.done + 1):
            with RECORDER.computing("data"):
                batches = next(coming)
            waited_s = _clock() - started
            iteration = self.sync.iterate(batches, context)
        self.done += 1
        here = len(self.sync.ranks)
        step_s = (_clock() - started) / here
        iteration.number, iteration.data_s, iteration.iterate_s = self.done, waited_s / here, step_s
        self._records.append(iteration)

    def _is_observed(self, position: Position) -> bool:
        """Whether layers are recorded: if due, with local steps in the first exchanges from then on."""
        mode, every = real(self.spec.sync), 1
        if isinstance(mode, WeightsSync):
            every = mode.every or position.iterations
            steps = (self.done if mode.every else position.iteration) + 1 - mode.delay_steps
            if steps * mode.fragments % every >= mode.fragments:  # nothing is merged
                return False
        first = self.done < names.FIRST_ITERATIONS + every - 1
        return first or self.done % self.spec.tracking.layer_interval < every

    def _flush(self, *, evaluated: bool = False) -> None:
        """Averages the records over the workers and logs them."""
        self.sync.flush()
        records, self._records = self._records, []
        sent = self.sync.totals.wire_bytes - sum(record.step.wire_bytes for record in records)
        metrics = averaged(records, self.processes, self.sync.workers, self.device)
        if self.rank == 0 and records:
            for record, values in zip(records, metrics, strict=True):
                sent += record.step.wire_bytes
                self.listener.log(record.number, values | {names.COMM_WIRE_MB_TOTAL: sent / 1e6})
            self.listener.progress(self._progress(metrics[-1]), evaluated=evaluated)

    def _show_own(self) -> None:
        """Shows what worker 0 knows by itself: asking the others would make workers wait for one another."""
        # With local steps most iterations send nothing.
        record = next((record for record in reversed(self._records) if record.step.layers), self._records[-1])
        sent, elements = (
            sum(getattr(layer, what) for layer in record.step.layers) for what in ("sent", "elements")
        )
        if self.rank == 0:
            latest = {
                names.TRAIN_LOSS: record.loss,
                names.COMM_FRACTION: sent / elements if elements else 0.0,
            }
            self.listener.progress(self._progress(latest), evaluated=False)

    def evaluated(self) -> Evaluation:
        """Evaluates the model on the test examples; nothing is reported."""
        self.sync.sync_model()
        return evaluate(
            self.model,
            self.task,
            self.data.test,
            self.rank,
            self.processes,
            self.device,
            self.spec.training.precision,
            self.spec.training.evaluation_block,
        )

    def _measure(self, evaluation: Evaluation) -> None:
        """Tells the batch plan, which may decide the next batches by it."""
        error = 1 - evaluation[ACCURACY.name] if ACCURACY.name in evaluation else math.nan
        self.plan.measured(self.done, error, evaluation[LOSS.name])

    def _evaluate(self) -> None:
        """Evaluates the model, and reports what was sent since the last evaluation."""
        self.evaluation = self.evaluated()
        self._measure(self.evaluation)
        self.sync.flush()
        totals = self.sync.totals
        metrics = self.last_evaluation() | epoch_metrics(totals, self._epoch_began)
        self._epoch_began = totals
        self._flush(evaluated=True)
        totals_so_far = self.totals()
        if self.rank == 0:
            # Charts update during the run; the last totals are logged when it has ended.
            live = totals_so_far if self.done < self.plan.iterations and not self.reached else {}
            self.listener.log(self.done, metrics | live)
        self.listener.evaluated(self.done, metrics | totals_so_far)

    def _progress(self, latest: dict[str, float]) -> RunProgress:
        self._shown = _clock()
        behind = self.done - self._done_at_start
        metric = self.task.metrics[0]
        # The first iteration also loads kernels, which takes as long as many others.
        began, counted = (self._first_done, behind - 1) if behind > 1 else (self._started, behind)
        pace = (_clock() - began) / counted if counted else 0.0
        return RunProgress(
            epoch=self.plan.position(self.done - 1).epoch + 1,
            epochs=self.plan.epochs,
            iteration=self.done,
            iterations=self.plan.iterations,
            loss=latest[names.TRAIN_LOSS],
            metric=metric,
            value=self.evaluation[metric.name] if self.evaluation else None,
            evaluation=self.plan.evaluations(self.done),
            fraction=self.sync.totals.fraction,
            wire_bytes=self.sync.totals.wire_bytes,
            seconds_left=pace * (self.plan.iterations - self.done),
            own_models=self.sync.own_models,
        )

    def _write_checkpoint(self, folder: Path) -> None:
        self.sync.sync_model()
        self.sync.flush()
        local_state = {"workers": self.sync.worker_state(), "random": self.randomness.state_dict()}
        save(local_state, folder / worker_file(self.rank))
        if self.rank == 0:
            evaluation = self.evaluation
            shared = {
                "spec": self.spec.model_dump_json(),
                "workers": self.sync.workers,
                "done": self.done,
                "seconds": self.seconds,
                "evaluation": dict(evaluation) if evaluation else None,
                "agreed": self.sync.shared_state(),
                "data": self.data.fingerprint,
                "plan": self.plan.state_dict(),
                "epoch_began": self._epoch_began.state_dict(),
                "undelivered": self.listener.undelivered(),
            }
            save(shared, folder / SHARED)


def _clock() -> float:
    """Seconds on a clock that stands still while numba compiles a kernel."""
    return perf_counter() - (_COMPILING.duration if _COMPILING.done else 0.0)
