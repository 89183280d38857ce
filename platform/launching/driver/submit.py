"""`taugrad submit`: runs a command as a Ray job, follows its log, and passes on its exit code."""

import asyncio
import logging
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from taugrad.compressors.exchange.keys import KEY, KEY_FILE

from ...exit_codes import FAILED, INTERRUPTED, OK
from ...places import RUNS
from ...spec import COMMAND_LINE, SpecError
from ...spec.overrides import ENVIRONMENT_PREFIX
from ...tracking.store import tracking_uri
from .cluster_probe import check_job_server, is_this_machine, sent_token

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_STARTING_S = 30.0
_AGAIN_S = 1.0
"""Seconds until a log that broke off is asked for again."""
_QUIET_S = 60.0
"""A log that says nothing for so long is asked for again: a gateway on the way may have forgotten its
connection, and told nobody."""
_LOST_S = 60.0
"""Seconds in which a cluster may answer again."""
_NEVER_SHIPPED = [".git", ".ray", ".venv", "mlruns", "mlflow.db*", RUNS, "**/__pycache__"]


def submit(
    command: str, specs: Sequence[Path], arguments: Sequence[str], address: str, files: Sequence[Path] = ()
) -> int:
    """Submits a command as a job to a Ray cluster whose machines have taugrad installed.

    The working directory travels along (what .gitignore excludes does not), so that specs and a user's own
    modules are found. So do `MLFLOW_TRACKING_URI` and `TAUGRAD_...`, but for `TAUGRAD_KEY`; when the cluster
    is this machine and no tracking URI is set, runs go to the same store as those of `taugrad train`. Without
    one, another machine's jobs have what its `ray start` had in the environment.

    `command` is train, search or auto; `specs` are files in the working directory, as are the `files` among
    the arguments; `address` is the job server's, http://HOST:PORT. Returns the job's exit code; 1 when the
    cluster cannot be reached, 130 when Ctrl-C ended the command, not necessarily the job. Raises SpecError: a
    file is outside the working directory, or the address is not valid.
    """
    url = urlparse(address)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise SpecError(COMMAND_LINE, f"--address {address}: must look like http://HOST:8265")
    shipped = dict(zip(map(str, files), _relative(files), strict=True))
    there = [shipped.get(argument, argument) for argument in arguments]
    entrypoint = shlex.join(["taugrad", command, *_relative(specs), *there])
    check_job_server(address)
    if (file := os.environ.get(KEY_FILE, "")) and not os.path.isabs(file):
        raise SpecError(KEY_FILE, f"{file}: give the absolute path that it has on the cluster's machines")
    # Ray shows a job's environment to anybody: no key is in it, only the name of its file.
    environment = {k: v for k, v in os.environ.items() if k.startswith(ENVIRONMENT_PREFIX) and k != KEY}
    if os.environ.get("MLFLOW_TRACKING_URI") or is_this_machine(address):
        environment["MLFLOW_TRACKING_URI"] = tracking_uri()
    runtime_env = {"working_dir": ".", "excludes": _NEVER_SHIPPED, "env_vars": environment}
    return _submit(address, entrypoint, runtime_env)


def _submit(address: str, entrypoint: str, runtime_env: Mapping[str, object]) -> int:
    """Submits a job and follows it; the job's exit code."""
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # We leave .git and .venv out ourselves; Ray warns that it does, too.
    os.environ.setdefault("RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES", "")
    from ray.exceptions import RayError  # noqa: PLC0415 - takes seconds

    from .ray_internals import JobClient  # noqa: PLC0415

    for noisy in ("ray", "ray.dashboard.modules.job.sdk"):  # every .gitignore several times; closed sockets
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        client = JobClient(address)
        job_id = _submitted(client, entrypoint, runtime_env)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        reason = " ".join(str(error).split())
        too_large = "status code 413" in reason or "exceeds the maximum size" in reason
        print(
            f"taugrad: {address} did not accept the job: {reason}"
            + (
                "; this folder is too large to send: name in .gitignore what the job does not need"
                if too_large
                else ""
            ),
            file=sys.stderr,
        )
        return FAILED
    print(f"job {job_id}: {entrypoint}", flush=True)
    return follow(client, job_id, address)


def _submitted(client: "JobSubmissionClient", entrypoint: str, runtime_env: Mapping[str, object]) -> str:
    """Submits a job. A head that has just started answers before it can take one."""
    deadline = time.monotonic() + _STARTING_S
    while True:
        try:
            return str(client.submit_job(entrypoint=entrypoint, runtime_env=dict(runtime_env)))
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(1)


def follow(client: "JobSubmissionClient", job_id: str, address: str) -> int:
    """Prints a job's log until the job ends. At Ctrl-C the job goes on, and two lines say how to go on, too.

    A log that breaks off before, such as by a proxy's time-out, is asked for again, and so is a cluster that
    does not answer, for a minute.

    Returns the job's exit code; 1 when the cluster does not answer any more, 130 after Ctrl-C.
    """
    from aiohttp import ClientError  # noqa: PLC0415 - Ray's client uses it
    from ray.exceptions import RayError  # noqa: PLC0415 - takes seconds
    from ray.job_submission import JobStatus  # noqa: PLC0415

    printed = 0

    async def print_log() -> None:
        nonlocal printed
        begins = 0  # each stream has the whole log
        log = client.tail_job_logs(job_id)
        while (text := await asyncio.wait_for(anext(log, None), _QUIET_S)) is not None:
            print(text[max(0, printed - begins) :], end="", flush=True)
            begins += len(text)
            printed = max(printed, begins)

    mode = "RAY_AUTH_MODE=token " if sent_token() else ""
    see, stop = (
        mode + shlex.join(["ray", "job", *words, "--address", address, job_id])
        for words in (["logs", "--follow"], ["stop"])
    )
    try:
        ended, silent_since = False, math.inf
        while True:
            try:
                asyncio.run(print_log())
                is_whole = True
            except BrokenPipeError:
                raise  # nobody reads what is printed
            except (ClientError, OSError, RuntimeError):
                is_whole = ended  # if the cluster is away, the next call says so
            try:
                info = client.get_job_info(job_id)
            except (OSError, RuntimeError, RayError):
                silent_since = min(silent_since, time.monotonic())
                if time.monotonic() >= silent_since + _LOST_S:
                    raise
            else:
                silent_since, ended = math.inf, info.status.is_terminal()
                if ended and is_whole:
                    break
            time.sleep(_AGAIN_S)
    except KeyboardInterrupt:
        print(f"job {job_id}: interrupted; continue with: {see}", file=sys.stderr)
        print(f"job {job_id}: goes on; to stop it: {stop}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError, RayError) as error:
        print(f"job {job_id}: the cluster does not answer any more: {error}", file=sys.stderr)
        print(f"job {job_id}: it may go on; continue with: {see}", file=sys.stderr)
        return FAILED
    if info.status == JobStatus.SUCCEEDED:
        return OK
    print(f"job {job_id}: {info.status}: {info.message}", file=sys.stderr)
    if info.driver_exit_code == 127:
        print("taugrad is not installed where the cluster's `ray start` was given", file=sys.stderr)
    return info.driver_exit_code or FAILED


def _relative(files: Sequence[Path]) -> list[str]:
    """Files as the job will find them; they must travel with the working directory."""
    paths = []
    for file in files:
        path = file.absolute()
        if not path.is_relative_to(Path.cwd()):
            raise SpecError(str(file), "is outside the working directory, and only that is sent with the job")
        paths.append(str(path.relative_to(Path.cwd())))
    return paths
