"""`taugrad submit`: the same runs as a Ray job, its log followed, its exit code passed on."""

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlparse

from ..reading import ENVIRONMENT_PREFIX, SpecError
from ..tracking.store import tracking_uri

FAILED, UNREACHABLE, INTERRUPTED = 1, 1, 130
_NEVER_SHIPPED = [".git", ".venv", "mlruns", "mlflow.db*", "taugrad-runs", "**/__pycache__"]


def submit(specs: Sequence[Path], overrides: Sequence[str], address: str) -> int:
    """Trains specs as a job on a Ray cluster whose machines have taugrad installed.

    The working directory travels along (what .gitignore excludes does not), so that specs and a user's own
    modules are found. So do `MLFLOW_TRACKING_URI` and `TAUGRAD_...`; when the cluster is this machine and
    no tracking URI is set, runs go to the same store as those of `taugrad train`.

    Args:
        specs: files in the working directory.
        overrides: command-line settings of the specs' fields.
        address: the job server, http://HOST:PORT.

    Returns:
        The job's exit code; 1 when the cluster cannot be reached.

    Raises:
        SpecError: a spec lies outside the working directory, or the address is none.
    """
    url = urlparse(address)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise SpecError("command line", [f"--address {address}: must look like http://HOST:8265"])
    entrypoint = shlex.join(["taugrad", "train", *_relative(specs), *overrides])
    environment = {k: v for k, v in os.environ.items() if k.startswith(ENVIRONMENT_PREFIX)}
    here = url.hostname in {"127.0.0.1", "localhost", "::1"}
    if here or os.environ.get("MLFLOW_TRACKING_URI"):
        environment["MLFLOW_TRACKING_URI"] = tracking_uri()
    runtime_env = {"working_dir": ".", "excludes": _NEVER_SHIPPED, "env_vars": environment}
    return asyncio.run(_follow(address, entrypoint, runtime_env))


async def _follow(address: str, entrypoint: str, runtime_env: Mapping[str, object]) -> int:
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    from ray.job_submission import JobStatus, JobSubmissionClient  # noqa: PLC0415 - takes seconds

    try:
        client = JobSubmissionClient(address)
        job_id = client.submit_job(entrypoint=entrypoint, runtime_env=dict(runtime_env))
    except (ConnectionError, RuntimeError) as error:
        print(f"taugrad: {address} does not take the job: {error}", file=sys.stderr)
        return UNREACHABLE
    print(f"job {job_id}: {entrypoint}", flush=True)
    try:
        async for text in client.tail_job_logs(job_id):
            print(text, end="", flush=True)
    except (KeyboardInterrupt, asyncio.CancelledError):
        client.stop_job(job_id)
        print(f"job {job_id}: stopped", file=sys.stderr)
        return INTERRUPTED
    info = client.get_job_info(job_id)
    if info.status == JobStatus.SUCCEEDED:
        return 0
    print(f"job {job_id}: {info.status}: {info.message}", file=sys.stderr)
    if info.driver_exit_code == 127:
        print("taugrad is not installed where the cluster's `ray start` was given", file=sys.stderr)
    return info.driver_exit_code or FAILED


def _relative(specs: Sequence[Path]) -> list[str]:
    """The specs as the job will find them; they must travel with the working directory."""
    paths = []
    for spec in specs:
        path = spec.absolute()
        if not path.is_relative_to(Path.cwd()):
            raise SpecError(str(spec), ["lies outside the working directory, which is what the job gets"])
        paths.append(str(path.relative_to(Path.cwd())))
    return paths
