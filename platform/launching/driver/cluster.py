"""The Ray to run on: the one that RAY_ADDRESS names, or our own, which only this machine can reach."""

import contextlib
import logging
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...deadline import in_time
from ...places import FOLDER, absolute_variables
from ...ports import LOOPBACK, free_port
from ...spec import SpecError
from ...watchdog import watched
from .preflight import cpus_here

_OBJECT_STORE_BYTES = 256 * 2**20
_ANSWER_S = 10.0
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")


def is_local() -> bool:
    """Whether runs get a Ray of their own on this machine."""
    return os.environ.get("RAY_ADDRESS", "") in ("", "local")


@contextmanager
def ray_cluster(*, dashboard: bool = False, workers: int = 0) -> Iterator[None]:
    """Connects to Ray for as long as the context lasts, and starts one first if no RAY_ADDRESS is set.

    Our own Ray listens on 127.0.0.1 only, and ends with the context; others that run on this machine stay as
    they are. Inside another such context it is that one's Ray. It runs its `dashboard`, which takes seconds,
    if Tune's clean-up of stopped trials will ask it, and starts the processes of the first run's `workers` at
    once. Raises SpecError: the cluster that RAY_ADDRESS names does not take us, or our own did not start.
    """
    import_ray()
    import ray  # noqa: PLC0415 - takes seconds

    if ray.is_initialized():
        yield
        return
    # It warns that access needs a token, which is as it should be.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        _connect(ray, stack, dashboard=dashboard, workers=workers)
        stack.callback(ray.shutdown)
        yield


def _connect(ray: Any, stack: contextlib.ExitStack, *, dashboard: bool, workers: int) -> None:
    """Connects to the cluster, or starts our own Ray, which ends with this process however that ends."""
    handler = signal.getsignal(signal.SIGTERM)
    if is_local():
        # What Ray starts inherits the environment.
        os.environ.update(stack.enter_context(watched()))
        dashboard_port = free_port()
        # Workers inherit these. A runtime environment would say the same, and start each of them twice.
        os.environ.update(absolute_variables(os.environ))
        os.environ[FOLDER] = str(Path.cwd())
        stack.callback(os.environ.pop, FOLDER, None)
        os.environ["RAY_API_SERVER_ADDRESS"] = f"http://{LOOPBACK}:{dashboard_port}"
        try:
            from .ray_internals import few_processes  # noqa: PLC0415

            with few_processes(cpus=cpus_here(), dashboard=dashboard, workers=workers):
                ray.init(
                    address="local",
                    num_cpus=cpus_here(),
                    include_dashboard=dashboard,
                    dashboard_host=LOOPBACK,
                    dashboard_port=dashboard_port,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    _node_ip_address=LOOPBACK,
                )
        except Exception as error:
            # After half a minute on an overloaded machine, or with too little shared memory.
            raise SpecError("Ray", f"it did not start on this machine: {_cause_of(error)}") from error
    else:
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
        except Exception as error:
            # Ray raises many types (no token, another version of Ray, ...); to the user all mean this.
            raise SpecError("RAY_ADDRESS", f"{os.environ['RAY_ADDRESS']}: {_cause_of(error)}") from error
    # Ray's own handler prints stacks instead of ending as Ctrl-C does.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def ray_lives() -> bool:
    """Whether the Ray that we are connected to has a node left; without one nothing would ever start."""
    import ray  # noqa: PLC0415 - takes seconds

    try:
        return in_time(_ANSWER_S, lambda: any(node["Alive"] for node in ray.nodes()))  # type: ignore[no-untyped-call]
    except Exception:  # Ray's own types, and that it does not answer
        return False


def import_ray() -> None:
    """Imports Ray, in the environment that it reads then; a user's own settings stay."""
    settings = {
        # How often the driver looks at its workers; the default makes every report wait 1.5 s.
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Workers with a part of a processor are more processes than Ray expects; nothing is wrong.
        "RAY_DEDUP_LOGS_SKIP_REGEX": "worker processes have been started on node",
    }
    if is_local():
        # Ray replaces 127.0.0.1 by the machine's outward address unless this, whose name speaks of
        # something else, is off. tests/integration looks at the listeners.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        settings["GLOO_SOCKET_IFNAME"] = "lo"
        # Ray's 15 leaves a worker 3% of a processor that something else keeps busy: it would not even start.
        settings["RAY_worker_niceness"] = "0"
        # Nobody takes this machine away from its own Ray: a process less to start.
        settings["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
        # What Ray Train would have in its controller's environment alone (see `ray_internals`).
        settings["RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"] = "0"
        settings["RAY_preload_python_modules"] = "ray.train"
        # Ray ends processes that are idle for a second: those that are started ahead, too.
        settings["RAY_idle_worker_killing_time_threshold_ms"] = "60000"
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from . import ray_internals  # noqa: F401, PLC0415 - with Ray and Ray Train, takes seconds


def _cause_of(error: BaseException) -> str:
    """What Ray says at the bottom, in one line, without the tracebacks that it puts into messages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(_TRACEBACK.sub("", str(error)).split())
