"""A Ray to run on: the one that RAY_ADDRESS names, or one of our own that only this machine can reach."""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..ports import LOOPBACK, free_port
from ..preflight import cpus_here
from ..reading import SpecError

_OBJECT_STORE_BYTES = 256 * 2**20
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")


def is_local() -> bool:
    """Whether runs get a Ray of their own on this machine."""
    return not os.environ.get("RAY_ADDRESS")


@contextmanager
def ray_cluster() -> Iterator[None]:
    """Connects to Ray for as long as the context lasts, and starts one first if no RAY_ADDRESS is set.

    Our own Ray listens on 127.0.0.1 only, and ends with the context; others that run on this machine
    stay as they are.

    Raises:
        SpecError: the cluster that RAY_ADDRESS names does not take us.
    """
    _prepare_environment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray  # noqa: PLC0415 - takes seconds, and reads the environment when it is imported

    # It warns that access needs a token, which is as it should be.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    if is_local():
        dashboard_port = free_port()
        ray.init(
            address="local",
            num_cpus=cpus_here(),
            # Ray Train asks the dashboard whether runs are alive. Where it finds none, or that of another
            # Ray on this machine, every run takes 12 s longer to end.
            include_dashboard=True,
            dashboard_host=LOOPBACK,
            dashboard_port=dashboard_port,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env={
                "env_vars": {
                    "PYTHONPATH": _python_path(),
                    "RAY_API_SERVER_ADDRESS": f"http://{LOOPBACK}:{dashboard_port}",
                }
            },
            _node_ip_address=LOOPBACK,
        )
    else:
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
        except Exception as error:
            # Ray raises many types (no token, another version of Ray, ...); to the user all mean this.
            raise SpecError("RAY_ADDRESS", [f"{os.environ['RAY_ADDRESS']}: {_cause_of(error)}"]) from error
    try:
        yield
    finally:
        ray.shutdown()


def _prepare_environment() -> None:
    """Sets what Ray reads when it is imported; a user's own settings stay."""
    settings = {
        # How often the driver looks at its workers; the default makes every report wait 1.5 s.
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if is_local():
        # Ray replaces 127.0.0.1 by the machine's outward address unless this, whose name speaks of
        # something else, is off. tests/integration looks at the listeners.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        settings["GLOO_SOCKET_IFNAME"] = "lo"
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _cause_of(error: BaseException) -> str:
    """What Ray says at the bottom, in one line, without the tracebacks that it puts into messages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(_TRACEBACK.sub("", str(error)).split())


def _python_path() -> str:
    """The workers' import path: a user's own modules are found where the command was given."""
    return os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
