"""One spec, one run: the driver's side."""

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..spec import RunSpec
from ..tracking import names
from ..tracking.ended import UNDELIVERED, Status, record_end
from ..tracking.holding import Hold
from ..tracking.masking import masked
from ..tracking.store import finish_run
from .board import Board, News
from .entry import Job, train_worker
from .failure import RunFailed, run_failed
from .run_folder import RunFolder
from .stages import stage
from .storing import storage_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_READ_S = 0.3


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    run_id: str
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation and the totals, by MLflow name."""


Watch = Callable[[News], None]
"""Called from another thread a few times a second."""


def launch(
    spec: RunSpec,
    client: "MlflowClient",
    run_id: str,
    watch: Watch,
    *,
    alone: bool = False,
    hold: Hold | None = None,
) -> RunResult:
    """Trains a spec on the connected Ray; goes on where an earlier launch of the run stopped.

    Args:
        spec: what to train.
        client: the tracking store that holds the run.
        run_id: the MLflow run, which is also the name of its folder under `spec.storage`.
        watch: told how it goes.
        alone: on a Ray that ends with this process, so that nothing needs to be cleaned up after it.
        hold: of the run, where the caller has taken it.

    Returns:
        How it ended; the MLflow run is in its final state.

    Raises:
        RunFailed: a worker failed, more often than `workers.max_restarts` allows.
        RunHeld: another process has the run; nothing was changed.
    """
    storage = storage_path(spec)
    folder = RunFolder.at(storage, run_id)
    with nullcontext(hold) if hold else Hold(client, run_id, folder.local) as held:
        with suppress(Exception):  # a comfort for people; the run needs no store to go on
            client.set_tag(run_id, names.TAG_CHECKPOINTS, f"{storage}/{run_id}")
        status: Status = "KILLED"
        try:
            folder.forget_rays_list()
            folder.set_aside(UNDELIVERED)  # the checkpoint has these metrics, or their steps are redone
            result = _fit(spec, client.tracking_uri, run_id, storage, watch, alone=alone)
            status = "FINISHED"
            return result
        except RunFailed:
            status = "FAILED"
            raise
        finally:
            if notices := _end(client, run_id, status, held, folder.local):
                watch(News(notices=notices))


def _end(client: "MlflowClient", run_id: str, status: Status, hold: Hold, folder: Path | None) -> list[str]:
    """Says in the store how a run ended, or else in a file; what the user should know about that."""
    try:
        if not hold.is_ours():
            return [f"another process has taken run {run_id} over: how it ended here is not recorded"]
        finish_run(client, run_id, status)
        return []
    except Exception as error:
        notice = f"MLflow does not answer ({masked(str(error))}): run {run_id} stays marked as running"
    if folder is None:
        return [notice]
    path = folder / UNDELIVERED
    try:
        record_end(path, run_id, status)
    except OSError as error:
        return [f"{notice}, and {path} cannot be written: {error}"]
    return [f"{notice} until you say, when it answers again: taugrad deliver {path}"]


def _fit(
    spec: RunSpec, tracking_uri: str, run_id: str, storage: str, watch: Watch, *, alone: bool
) -> RunResult:
    import ray  # noqa: PLC0415 - takes seconds
    from ray.exceptions import RayError  # noqa: PLC0415
    from ray.train import (  # noqa: PLC0415
        FailureConfig,
        RunConfig,
        ScalingConfig,
        TrainingFailedError,
    )

    from .ray_train import trainer_for  # noqa: PLC0415

    watch(News(stages=[stage("starting the workers")]))
    board: Any = ray.remote(num_cpus=0)(Board).remote()
    gpu, fewest = spec.workers.device == "cuda", spec.workers.min_count
    group: Any = spec.processes if fewest is None else (fewest, spec.processes)
    trainer = trainer_for(alone)(
        train_worker,
        train_loop_config={"job": Job(spec.model_dump_json(), tracking_uri, run_id, board)},
        scaling_config=ScalingConfig(
            num_workers=group,
            use_gpu=gpu,
            resources_per_worker={"CPU": spec.workers.cpus} | ({"GPU": 1} if gpu else {}),
        ),
        run_config=RunConfig(
            name=run_id,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=spec.workers.max_restarts),
        ),
    )
    stop = threading.Event()
    reader = threading.Thread(target=_read_board, args=(board, watch, stop), daemon=True)
    reader.start()
    try:
        trainer.fit()
        metrics: dict[str, float] = ray.get(board.outcome.remote())
    except TrainingFailedError as error:
        raise run_failed(error) from error
    except RayError as error:  # the node with Ray Train's controller died
        raise RunFailed(f"Ray lost what controls the run: {' '.join(str(error).split())}") from error
    finally:
        stop.set()
        reader.join()
        with suppress(Exception):  # it may have died with its node
            ray.kill(board)
    return RunResult(run_id, metrics)


def _read_board(board: Any, watch: Watch, stop: threading.Event) -> None:
    import ray  # noqa: PLC0415

    ended = False
    while not ended:
        ended = stop.wait(_READ_S)  # once more after the end, for the last notices
        with suppress(Exception):  # the board is not up yet, or Ray is going down
            watch(ray.get(board.read.remote(), timeout=10))
