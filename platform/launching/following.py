"""Follows a job's log until the job ends or the user leaves."""

import asyncio
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING

from ..exit_codes import FAILED, INTERRUPTED, OK, Terminated
from .cluster_probe import sent_token

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_STOPPING_S = 30.0
_LOOK_S = 0.5


def follow(client: "JobSubmissionClient", job_id: str, address: str) -> int:
    """Prints a job's log until the job ends.

    Ctrl-C asks whether to stop the job. If nobody can be asked, and at SIGTERM, the job continues, and one
    line says how to stop it.

    Args:
        client: of the job server.
        job_id: as the job server calls it.
        address: of the job server, http://HOST:PORT.

    Returns:
        The job's exit code; 1 when the cluster does not answer any more, 130 after Ctrl-C.
    """
    from ray.exceptions import RayError  # noqa: PLC0415 - takes seconds
    from ray.job_submission import JobStatus  # noqa: PLC0415

    try:
        asyncio.run(_print_log(client, job_id))
        info = client.get_job_info(job_id)
    except KeyboardInterrupt as wish:
        return _go(client, job_id, address, may_ask=not isinstance(wish, Terminated))
    except BrokenPipeError:
        raise  # nobody reads what is printed
    except (OSError, RuntimeError, RayError) as error:
        print(f"job {job_id}: the cluster does not answer any more: {error}", file=sys.stderr)
        return FAILED
    if info.status == JobStatus.SUCCEEDED:
        return OK
    print(f"job {job_id}: {info.status}: {info.message}", file=sys.stderr)
    if info.driver_exit_code == 127:
        print("taugrad is not installed where the cluster's `ray start` was given", file=sys.stderr)
    return info.driver_exit_code or FAILED


async def _print_log(client: "JobSubmissionClient", job_id: str) -> None:
    async for text in client.tail_job_logs(job_id):
        print(text, end="", flush=True)


def _go(client: "JobSubmissionClient", job_id: str, address: str, *, may_ask: bool) -> int:
    """Stops the job if the user wants it; otherwise says how to stop it."""
    from ray.exceptions import RayError  # noqa: PLC0415

    problem = "goes on"
    if may_ask and _is_to_stop(job_id):
        try:
            _stop(client, job_id)
        except (OSError, RuntimeError, RayError) as error:
            problem = f"could not be stopped ({error})"
        else:
            return INTERRUPTED
    mode = "RAY_AUTH_MODE=token " if sent_token() else ""
    see, stop = (
        mode + shlex.join(["ray", "job", *words, "--address", address, job_id])
        for words in (["logs", "--follow"], ["stop"])
    )
    print(f"job {job_id}: interrupted; continue with: {see}", file=sys.stderr)
    print(f"job {job_id}: {problem}; to stop it: {stop}", file=sys.stderr)
    return INTERRUPTED


def _is_to_stop(job_id: str) -> bool:
    """Asks, if there is somebody to ask; a second Ctrl-C means no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"\njob {job_id} is running. Stop it? [y/N] ", end="", file=sys.stderr, flush=True)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # the command's hears the first one only
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    finally:
        signal.signal(signal.SIGINT, before)
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in {"y", "yes"}


def _stop(client: "JobSubmissionClient", job_id: str) -> None:
    """Stops a job and waits until it has ended."""
    if not client.stop_job(job_id):
        print(f"job {job_id}: had ended already", file=sys.stderr)
        return
    deadline = time.monotonic() + _STOPPING_S
    while not client.get_job_status(job_id).is_terminal():
        if time.monotonic() > deadline:
            raise RuntimeError(f"it was asked to stop, and has not stopped after {_STOPPING_S:.0f} s")
        time.sleep(_LOOK_S)
    print(f"job {job_id}: stopped", file=sys.stderr)
