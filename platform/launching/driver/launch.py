"""One spec, one run: the driver's side."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from ...places import address_of, output_folder, placed
from ...spec import RunSpec
from ...tracking import names
from ...tracking.masking import masked
from ...tracking.record import UNDELIVERED, Status
from ...tracking.run_lock import RunLock
from ..run_folder import RAYS_LIST, RunFolder, fallback, keep_text
from ..run_status import Job, RunStatus, StatusUpdate
from ..storage import reason
from ..undelivered import end_in_store
from ..worker.entry import train_worker
from .failure import RunFailed, run_failed

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_READ_S = 0.3
_PATIENCE_S = 5.0
_SAVING_S = 20.0
"""An interrupted run may take so long for its checkpoint; what stops containers waits 30 s."""


Watch = Callable[[StatusUpdate], None]
"""Called from another thread a few times a second."""


def launch(
    spec: RunSpec,
    client: "MlflowClient",
    run_id: str,
    watch: Watch,
    *,
    alone: bool = False,
    lock: RunLock | None = None,
) -> dict[str, float]:
    """Trains a spec on the connected Ray; continues where an earlier launch of the run stopped.

    `run_id` is the MLflow run, and the name of its folder under `spec.storage`; `lock` is that of a caller
    who has taken the run. `alone`: this Ray ends with the process, and nothing needs to be cleaned up.

    Returns the last evaluation and the totals, by MLflow name; the MLflow run is in its final state. Raises
    RunFailed: a worker failed, more often than `workers.max_restarts` allows; RunHeld: another process holds
    the run, and nothing was changed.
    """
    storage = address_of(spec.storage)
    folder = RunFolder.at(storage, run_id)
    if folder.local is not None:
        output_folder(folder.local.parent)
    with nullcontext(lock) if lock else RunLock(client, run_id, new=True) as taken:
        with suppress(Exception):  # a comfort for people; the run needs no store to go on
            client.set_tag(run_id, names.TAG_CHECKPOINTS, folder.address)
            if spec.publish.path:
                client.set_tag(run_id, names.TAG_PUBLISHED, address_of(spec.publish.path))
        status: Status = "KILLED"
        try:
            _set_aside(folder)
            metrics, artifacts = _fit(spec, client.tracking_uri, folder, storage, watch, alone=alone)
            status = "FINISHED"
            watch(StatusUpdate(notices=list(_keep(client, artifacts, folder))))
            return metrics
        except RunFailed:
            status = "FAILED"
            raise
        finally:
            if notices := end_in_store(client, run_id, status, folder, taken):
                watch(StatusUpdate(notices=notices))


def _set_aside(folder: RunFolder) -> None:
    """Puts away what an earlier launch of the run has left; raises RunFailed."""
    try:
        # The checkpoint has these metrics, or their steps are redone.
        folder.set_aside(RAYS_LIST, UNDELIVERED)
        fallback(folder.run_id).set_aside(UNDELIVERED)
    except OSError as error:
        raise RunFailed(f"{folder.address}: {reason(error)}") from error


def _keep(client: "MlflowClient", artifacts: Mapping[str, str], folder: RunFolder) -> Iterator[str]:
    """Makes texts artifacts of the run, or else files beside the checkpoints; what the user should know."""
    for name, text in artifacts.items():
        try:
            client.log_text(folder.run_id, text, name)
        except Exception as error:  # the training is done: what it came to must not be lost with it
            problem = f"MLflow did not take {name} ({masked(str(error))})"
            try:
                yield f"{problem}; it is {keep_text(folder, name, text)}"
            except OSError as second:
                yield f"{problem}, and it could not be kept: {second}"


def _fit(
    spec: RunSpec, tracking_uri: str, folder: RunFolder, storage: str, watch: Watch, *, alone: bool
) -> tuple[dict[str, float], dict[str, str]]:
    """Trains; what `RunStatus.set_result` was told of the end."""
    import ray  # noqa: PLC0415 - takes seconds
    from ray.exceptions import RayError  # noqa: PLC0415
    from ray.train import (  # noqa: PLC0415
        FailureConfig,
        RunConfig,
        ScalingConfig,
        TrainingFailedError,
    )
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    from .ray_internals import trainer_for  # noqa: PLC0415

    watch(StatusUpdate(stages=["starting the workers"]))
    # On this machine, as Ray Train's controller is: it outlives the machines of workers. A soft affinity is
    # not enough: Ray (2.60) then takes another node now and then.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    status: Any = ray.remote(num_cpus=0)(RunStatus).options(scheduling_strategy=here).remote()
    gpu, fewest = spec.workers.device == "cuda", spec.workers.min_count
    group: Any = spec.processes if fewest is None else (fewest, spec.processes)
    job = Job(placed(spec).model_dump_json(), tracking_uri, folder.run_id, folder.address, status)
    trainer = trainer_for(alone)(
        train_worker,
        train_loop_config={"job": job},
        scaling_config=ScalingConfig(
            num_workers=group,
            use_gpu=gpu,
            resources_per_worker={"CPU": spec.workers.cpus} | ({"GPU": 1} if gpu else {}),
        ),
        run_config=RunConfig(
            name=folder.run_id,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=spec.workers.max_restarts),
        ),
    )
    stop = threading.Event()
    reader = threading.Thread(target=_read_status, args=(status, watch, stop), daemon=True)
    reader.start()
    try:
        trainer.fit()
        outcome: tuple[dict[str, float], dict[str, str]] = ray.get(status.result.remote())
    except KeyboardInterrupt:
        _save(status, watch)
        raise
    except TrainingFailedError as error:
        raise run_failed(error) from error
    except RayError as error:  # the node with Ray Train's controller died
        raise RunFailed(f"Ray lost what controls the run: {' '.join(str(error).split())}") from error
    finally:
        stop.set()
        reader.join()
        with suppress(Exception):  # it may have died with its node
            ray.kill(status)
    return outcome


def _save(status: Any, watch: Watch) -> None:
    """Has the workers write a checkpoint, if they train, and waits for it, at most `_SAVING_S`."""
    import ray  # noqa: PLC0415

    with suppress(Exception):  # Ray may be going down; the last checkpoint is there
        if not ray.get(status.interrupt.remote(), timeout=_PATIENCE_S):
            return
        watch(StatusUpdate(stages=["writing a checkpoint"]))
        deadline = time.monotonic() + _SAVING_S
        while time.monotonic() < deadline and not ray.get(status.is_saved.remote(), timeout=_PATIENCE_S):
            time.sleep(_READ_S)


def _read_status(status: Any, watch: Watch, stop: threading.Event) -> None:
    import ray  # noqa: PLC0415

    ended = False
    while not ended:
        ended = stop.wait(_READ_S)  # once more after the end, for the last notices
        update = StatusUpdate()  # none: who shows it wants to be asked all the same
        with suppress(Exception):  # the status is not up yet, or Ray is going down
            update = ray.get(status.read.remote(), timeout=_PATIENCE_S)
        watch(update)
