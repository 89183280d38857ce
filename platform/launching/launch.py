"""One spec, one run: the driver's side."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..spec import RunSpec
from ..tracking import names
from ..tracking.store import finish_run, home
from .board import Board, News
from .job import Job

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_READ_S = 0.3


class RunFailed(RuntimeError):
    """A run that did not end well; the message says what happened in which worker."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    run_id: str
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation and the totals, by MLflow name."""


Watch = Callable[[News], None]
"""Called from another thread a few times a second."""


def launch(spec: RunSpec, client: "MlflowClient", run_id: str, watch: Watch) -> RunResult:
    """Trains a spec on the connected Ray; goes on where an earlier launch of the run stopped.

    Args:
        spec: what to train.
        client: the tracking store that holds the run.
        run_id: the MLflow run, which is also the name of its folder under `spec.storage`.
        watch: told how it goes.

    Returns:
        How it ended; the MLflow run is in its final state.

    Raises:
        RunFailed: a worker failed, more often than `workers.max_restarts` allows.
    """
    storage = storage_path(spec)
    with suppress(Exception):  # a comfort for people; the run needs no store to go on
        client.set_tag(run_id, names.TAG_CHECKPOINTS, f"{storage}/{run_id}")
    status: Literal["FINISHED", "FAILED", "KILLED"] = "KILLED"
    try:
        result = _fit(spec, client.tracking_uri, run_id, storage, watch)
        status = "FINISHED"
        return result
    except RunFailed:
        status = "FAILED"
        raise
    finally:
        try:
            finish_run(client, run_id, status)
        except Exception as error:
            notice = f"MLflow does not answer ({error}): run {run_id} stays marked as running"
            watch(News(notices=[notice]))


def storage_path(spec: RunSpec) -> str:
    """Where checkpoints lie, as Ray wants it: absolute, or a bucket's address."""
    # A Path makes s3://bucket of YAML into s3:/bucket.
    text = str(spec.storage)
    if ":/" in text:
        return text if "://" in text else text.replace(":/", "://", 1)
    return str(home() / Path(text).expanduser())


def _fit(spec: RunSpec, tracking_uri: str, run_id: str, storage: str, watch: Watch) -> RunResult:
    import ray  # noqa: PLC0415 - takes seconds
    from ray.train import (  # noqa: PLC0415
        CheckpointConfig,
        FailureConfig,
        RunConfig,
        ScalingConfig,
        TrainingFailedError,
    )
    from ray.train.torch import TorchTrainer  # noqa: PLC0415

    from .process_group import OwnProcessGroup  # noqa: PLC0415
    from .worker import train_worker  # noqa: PLC0415

    board: Any = ray.remote(num_cpus=0)(Board).remote()
    gpu = spec.workers.device == "cuda"
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"job": Job(spec.model_dump_json(), tracking_uri, run_id, board)},
        torch_config=OwnProcessGroup(),
        scaling_config=ScalingConfig(
            num_workers=spec.processes,
            use_gpu=gpu,
            resources_per_worker={"CPU": spec.workers.cpus} | ({"GPU": 1} if gpu else {}),
        ),
        run_config=RunConfig(
            name=run_id,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=spec.workers.max_restarts),
            checkpoint_config=CheckpointConfig(num_to_keep=spec.checkpoint.keep),
        ),
    )
    stop = threading.Event()
    reader = threading.Thread(target=_read_board, args=(board, watch, stop), daemon=True)
    reader.start()
    try:
        result = trainer.fit()
    except TrainingFailedError as error:
        raise RunFailed(_what_failed(error)) from error
    finally:
        stop.set()
        reader.join()
        ray.kill(board)
    metrics = {k: float(v) for k, v in (result.metrics or {}).items() if isinstance(v, int | float)}
    return RunResult(run_id, metrics)


def _read_board(board: Any, watch: Watch, stop: threading.Event) -> None:
    import ray  # noqa: PLC0415

    ended = False
    while not ended:
        ended = stop.wait(_READ_S)  # once more after the end, for the last notices
        with suppress(Exception):  # the board is not up yet, or Ray is going down
            watch(ray.get(board.read.remote(), timeout=10))


def _what_failed(error: Exception) -> str:
    """The first worker's own error, without Ray's wrapping."""
    failures = getattr(error, "worker_failures", None)
    if not failures:
        cause = error.__cause__ or getattr(error, "controller_failure", None) or error
        return str(cause)
    rank, failure = min(failures.items())
    if type(failure).__name__ == "WorkerHealthCheckFailedError":
        return f"worker {rank}'s process died (killed, out of memory, or crashed)"
    cause = getattr(failure, "base_exc", None) or getattr(failure, "cause", None) or failure
    return f"worker {rank}: {type(cause).__name__}: {cause}"
