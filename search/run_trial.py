"""One training of a search: in this process if its workers are simulated, otherwise as a Ray Train run.

Each training is an ordinary MLflow run, nested below the search's run.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taugrad.platform.launching.driver.launch import launch
from taugrad.platform.launching.run_folder import RunFolder
from taugrad.platform.launching.run_status import StatusUpdate
from taugrad.platform.launching.undelivered import close_journal, end_in_store
from taugrad.platform.places import address_of
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.journal import MetricsJournal
from taugrad.platform.tracking.record import Status
from taugrad.platform.training.reporting import Listener, RunProgress
from taugrad.platform.user_code import import_object

from .measured import outcome_of
from .objective import TrialOutcome

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from taugrad.platform.training.trainer import Trainer


@dataclass(frozen=True)
class TrainingState:
    """A training at an evaluation."""

    evaluation: int
    """Counted from 1."""
    share: float
    """The part of the training that is done, above 0; 1 only at the last evaluation."""
    outcome: TrialOutcome


OnEvaluation = Callable[[TrainingState], None]
"""Called at each evaluation; raises SystemExit to stop the training."""


def train(
    spec: RunSpec,
    client: "MlflowClient",
    run_id: str,
    evaluate: str | None,
    metric: Metric,
    notify: OnEvaluation,
    tell: Callable[[str], None],
) -> TrialOutcome:
    """Trains a spec to its end.

    Args:
        spec: the run.
        client: the tracking store.
        run_id: the MLflow run, in the state RUNNING; afterwards in its final one.
        evaluate: `package.module:function` of a user's own training.
        metric: of the result.
        notify: called at each evaluation.
        tell: takes what the user should know, such as where metrics are that the store did not take.

    Returns:
        The result of the last evaluation.

    Raises:
        Exception: the training failed.
    """
    if evaluate is None and not spec.sync.is_simulated:
        return _launched(spec, client, run_id, metric, notify, tell)
    folder = RunFolder.at(address_of(spec.storage), run_id)
    status: Status = "KILLED"
    try:
        journal = MetricsJournal(client.tracking_uri, run_id, tell, client)
        try:
            if evaluate is not None:
                outcome = _evaluated(evaluate, spec, journal, metric, notify)
            else:
                outcome = _simulated(spec, journal, metric, notify)
        finally:
            close_journal(journal, folder, tell)
        status = "FINISHED"
        return outcome
    except Exception:
        status = "FAILED"
        raise
    finally:
        for notice in end_in_store(client, run_id, status, folder):
            tell(notice)


def in_own_process(spec: RunSpec, evaluate: str | None) -> bool:
    """Whether a training runs in the process of its trial, not in its own workers."""
    return evaluate is not None or spec.sync.is_simulated


def _simulated(spec: RunSpec, journal: MetricsJournal, metric: Metric, notify: OnEvaluation) -> TrialOutcome:
    import torch  # noqa: PLC0415 - takes seconds

    from taugrad.platform.data import load  # noqa: PLC0415
    from taugrad.platform.training.trainer import Trainer  # noqa: PLC0415

    torch.set_num_threads(max(1, int(spec.workers.cpus)))
    device = torch.device("cuda" if spec.workers.device == "cuda" else "cpu")
    listener = _Listener(journal, metric, notify)
    with group_of_one():
        data = load(spec.data)
        if data.fingerprint:
            journal.tag(names.TAG_DATA, data.fingerprint)
        trainer = Trainer(spec, data, device, listener)
        listener.trainer = trainer
        trainer.fit()
        journal.log(trainer.done, trainer.totals())
    assert listener.latest is not None  # every training ends with an evaluation
    return listener.latest


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process, without a network."""
    import torch.distributed as dist  # noqa: PLC0415 - takes seconds
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Listener(Listener):
    """Logs metrics to MLflow, and reports evaluations to the trial; writes no checkpoints."""

    def __init__(self, journal: MetricsJournal, metric: Metric, notify: OnEvaluation) -> None:
        self._journal, self._metric, self._tell = journal, metric, notify
        self._evaluations = 0
        self.trainer: Trainer | None = None
        """The trainer whose listener this is."""
        self.latest: TrialOutcome | None = None

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._journal.log(iteration, metrics)

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        assert self.trainer is not None
        self.latest = outcome_of(metrics, self._metric)
        assert self.latest is not None  # an evaluation has all metrics of its task
        self._evaluations += 1
        share = 1.0 if self.trainer.reached else iteration / self.trainer.plan.iterations
        self._tell(TrainingState(self._evaluations, share, self.latest))


def _launched(
    spec: RunSpec,
    client: "MlflowClient",
    run_id: str,
    metric: Metric,
    notify: OnEvaluation,
    tell: Callable[[str], None],
) -> TrialOutcome:
    """Trains as a Ray Train run; if one with this name exists, it continues from its last checkpoint."""
    heard: queue.SimpleQueue[RunProgress | dict[str, float] | BaseException] = queue.SimpleQueue()

    def watch(update: StatusUpdate) -> None:
        for notice in update.notices:
            tell(notice)
        for progress in update.evaluations:
            heard.put(progress)

    def run() -> None:
        try:
            heard.put(launch(spec, client, run_id, watch))
        except BaseException as error:
            heard.put(error)

    # Tune stops a trial by an exception in the thread that reports: this one, which must not wait elsewhere.
    threading.Thread(target=run, daemon=True).start()
    while True:
        match heard.get():
            case RunProgress() as progress:
                assert progress.value is not None  # it comes from an evaluation
                reached = _reached(spec, metric, progress.value)
                share = 1.0 if reached else progress.iteration / progress.iterations
                outcome = TrialOutcome(progress.value, progress.wire_bytes)
                notify(TrainingState(progress.evaluation, share, outcome))
            case dict() as metrics:
                last = outcome_of(metrics, metric)
                assert last is not None
                return last
            case BaseException() as error:
                raise error


def _reached(spec: RunSpec, metric: Metric, value: float) -> bool:
    """Whether a training ends here as it has reached `training.until`, if that has this metric alone."""
    until = spec.training.until
    wanted = until.get(metric.name)
    return wanted is not None and len(until) == 1 and not metric.is_better(wanted, value)


def _evaluated(
    evaluate: str, spec: RunSpec, journal: MetricsJournal, metric: Metric, notify: OnEvaluation
) -> TrialOutcome:
    """Runs a user's own training."""
    outcome: TrialOutcome | None = None
    expected = _expected_evaluations(spec)
    for count, (value, wire_bytes) in enumerate(import_object(evaluate)(spec), start=1):
        outcome = TrialOutcome(float(value), float(wire_bytes))
        wire_gb = {names.TOTAL_WIRE_GB: outcome.wire_bytes / 1e9}
        journal.log(count, {names.eval_metric(metric.name): outcome.value} | wire_gb)
        notify(TrainingState(count, min(1.0, count / expected), outcome))
    if outcome is None:
        raise ValueError(f"{evaluate} yielded no epoch")
    return outcome


def _expected_evaluations(spec: RunSpec) -> int:
    """The evaluations that a user's own training yields, by iterations or by epochs."""
    training = spec.training
    if training.iterations is None or training.evaluate_every is None:
        return training.epochs
    return math.ceil(training.iterations / training.evaluate_every)
