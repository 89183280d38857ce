"""One training of a search: in this process if its workers are simulated, otherwise as a Ray Train run.

Each training is an ordinary MLflow run, nested below the search's run.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taugrad.platform.launching.launch import launch
from taugrad.platform.launching.run_status import News
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.journal import Journal
from taugrad.platform.tracking.store import finish_run
from taugrad.platform.training.reporting import Listener, Progress
from taugrad.platform.user_code import import_object

from .measured import outcome_of
from .objective import Outcome

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from taugrad.platform.training.trainer import Trainer


@dataclass(frozen=True)
class Standing:
    """The state of a training at an evaluation."""

    evaluation: int
    """Counted from 1."""
    share: float
    """How much of the training is done, above 0; only the last evaluation has 1."""
    outcome: Outcome


OnEvaluation = Callable[[Standing], None]
"""Called at each evaluation; raises SystemExit to stop the training."""

_DELIVERY_S = 30.0


def train(
    spec: RunSpec,
    client: "MlflowClient",
    run_id: str,
    evaluate: str | None,
    metric: Metric,
    tell: OnEvaluation,
) -> Outcome:
    """Trains a spec to its end.

    Args:
        spec: what to train.
        client: the tracking store that holds the run.
        run_id: the MLflow run, in the state RUNNING; afterwards it is in its final one.
        evaluate: `package.module:function` of a user's own training.
        metric: the one that counts.
        tell: told how it goes.

    Returns:
        The last evaluation, and what was sent.

    Raises:
        Exception: whatever the training raises.
    """
    if evaluate is None and not spec.sync.is_simulated:
        return _launched(spec, client, run_id, metric, tell)
    try:
        if evaluate is not None:
            outcome = _evaluated(evaluate, spec, client, run_id, metric, tell)
        else:
            outcome = _simulated(spec, client, run_id, metric, tell)
    except BaseException as error:
        with suppress(Exception):  # the training's own error says more than that of a store that is away
            finish_run(client, run_id, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    with suppress(Exception):
        finish_run(client, run_id, "FINISHED")
    return outcome


def in_own_process(spec: RunSpec, evaluate: str | None) -> bool:
    """Whether a training runs in the process of its trial, not in its own workers."""
    return evaluate is not None or spec.sync.is_simulated


def _simulated(
    spec: RunSpec, client: "MlflowClient", run_id: str, metric: Metric, tell: OnEvaluation
) -> Outcome:
    import torch  # noqa: PLC0415 - takes seconds

    from taugrad.platform.data import load  # noqa: PLC0415
    from taugrad.platform.training.trainer import Trainer  # noqa: PLC0415

    torch.set_num_threads(max(1, int(spec.workers.cpus)))
    device = torch.device("cuda" if spec.workers.device == "cuda" else "cpu")
    journal = Journal(client.tracking_uri, run_id, print, client)
    listener = _Listener(journal, metric, tell)
    try:
        with group_of_one():
            data = load(spec.data)
            if data.fingerprint:
                journal.tag(names.TAG_DATA, data.fingerprint)
            trainer = Trainer(spec, data, device, listener)
            listener.trainer = trainer
            trainer.fit()
            journal.log(trainer.done, trainer.totals())
    finally:
        journal.close(_DELIVERY_S)
    assert listener.latest is not None  # every training ends with an evaluation
    return listener.latest


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group that the trainer can ask, without a network."""
    import torch.distributed as dist  # noqa: PLC0415 - takes seconds
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Listener(Listener):
    """Hands metrics to MLflow and evaluations to the trial; simulated trainings leave no checkpoints."""

    def __init__(self, journal: Journal, metric: Metric, tell: OnEvaluation) -> None:
        self._journal, self._metric, self._tell = journal, metric, tell
        self._evaluations = 0
        self.trainer: Trainer | None = None
        """The one that it listens to."""
        self.latest: Outcome | None = None

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._journal.log(iteration, metrics)

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        assert self.trainer is not None
        self.latest = _whole(outcome_of(metrics, self._metric))
        self._evaluations += 1
        share = 1.0 if self.trainer.reached else iteration / self.trainer.plan.iterations
        self._tell(Standing(self._evaluations, share, self.latest))


def _whole(outcome: Outcome | None) -> Outcome:
    assert outcome is not None  # an evaluation says all metrics of its task
    return outcome


def _launched(
    spec: RunSpec, client: "MlflowClient", run_id: str, metric: Metric, tell: OnEvaluation
) -> Outcome:
    """Trains as a Ray Train run; if one with this name exists, it continues from its last checkpoint."""
    heard: queue.SimpleQueue[Progress | dict[str, float] | BaseException] = queue.SimpleQueue()

    def watch(news: News) -> None:
        for progress in news.evaluations:
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
            case Progress() as progress:
                assert progress.value is not None  # it comes from an evaluation
                reached = _reached(spec, metric, progress.value)
                share = 1.0 if reached else progress.iteration / progress.iterations
                tell(Standing(progress.evaluation, share, Outcome(progress.value, progress.wire_bytes)))
            case dict() as metrics:
                return _whole(outcome_of(metrics, metric))
            case BaseException() as error:
                raise error


def _reached(spec: RunSpec, metric: Metric, value: float) -> bool:
    """Whether a training ends here since it came to what `training.until` asks for; of one metric alone."""
    until = spec.training.until
    wanted = until.get(metric.name)
    return wanted is not None and len(until) == 1 and not metric.is_better(wanted, value)


def _evaluated(
    evaluate: str,
    spec: RunSpec,
    client: "MlflowClient",
    run_id: str,
    metric: Metric,
    tell: OnEvaluation,
) -> Outcome:
    """By a user's own training."""
    outcome: Outcome | None = None
    expected = _expected_evaluations(spec)
    for count, (value, wire_bytes) in enumerate(import_object(evaluate)(spec), start=1):
        outcome = Outcome(float(value), float(wire_bytes))
        client.log_metric(run_id, names.eval_metric(metric.name), outcome.value, step=count)
        client.log_metric(run_id, names.TOTAL_WIRE_GB, outcome.wire_bytes / 1e9, step=count)
        tell(Standing(count, min(1.0, count / expected), outcome))
    if outcome is None:
        raise ValueError(f"{evaluate} yielded no epoch")
    return outcome


def _expected_evaluations(spec: RunSpec) -> int:
    """How often a user's own training yields: at each evaluation by iterations, else after each epoch."""
    training = spec.training
    if training.iterations is None or training.evaluate_every is None:
        return training.epochs
    return math.ceil(training.iterations / training.evaluate_every)
