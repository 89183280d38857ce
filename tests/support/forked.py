"""Processes of tests, forked from a server that has imported torch and the trainer once.

A process that imports torch itself spends two seconds on it, and the tests start some hundred of them.
"""

import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

_FORKED = get_context("forkserver")
_FORKED.set_forkserver_preload(["preloaded"])
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def _start(
    script: Path | str, arguments: Sequence[object], out: Path, errors: Path, *, daemon: bool, **more: Any
) -> BaseProcess:
    process = _FORKED.Process(
        target=_work,
        args=(str(script), [str(argument) for argument in arguments], str(out), str(errors)),
        kwargs=more,
        daemon=daemon,
    )
    # The server finds what it is to import as this process does.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    process.start()
    return process


def start(
    script: Path, arguments: Sequence[object], out: Path, errors: Path, more: Mapping[str, str] | None = None
) -> BaseProcess:
    """Starts `python SCRIPT ARGUMENTS` in the environment of workers; what it prints goes to two files."""
    environment = dict(os.environ) | _ENVIRONMENT | (more or {"CUDA_VISIBLE_DEVICES": ""})
    return _start(script, arguments, out, errors, daemon=True, environment=environment)


def run_workers(
    script: Path,
    arguments: Callable[[int], Sequence[object]],
    workers: int,
    *,
    timeout_s: float = 400,
    killed: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a script by so many processes, and ends the others when one fails.

    Args:
        script: run as `python SCRIPT ARGUMENTS` would.
        arguments: of a rank.
        workers: how many.
        timeout_s: after which those that still run have hung.
        killed: ranks that must end by SIGKILL.
        environment: more of it; by default, they see no GPU.

    Raises:
        AssertionError: a worker failed, or hung; with the end of what each one printed.
    """
    with tempfile.TemporaryDirectory(prefix="taugrad-workers-") as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(workers)]
        processes: list[BaseProcess] = []
        dues = [-signal.SIGKILL if rank in killed else 0 for rank in range(workers)]
        try:
            for rank, log in enumerate(logs):
                processes.append(start(script, arguments(rank), log, log, environment))
            deadline = monotonic() + timeout_s
            while any(process.is_alive() for process in processes) and monotonic() < deadline:
                if any(process.exitcode not in (None, dues[rank]) for rank, process in enumerate(processes)):
                    break
                sleep(0.05)
            codes = [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()
        output = "\n".join(log.read_text()[-3000:] for log in logs if log.exists())
    assert codes == dues, f"{script.name}: workers ended with {codes} (None: they hung)\n{output}"


class Worker:
    """One worker that a test watches, stops or kills while it runs."""

    def __init__(self, script: Path, arguments: Sequence[object], log: Path) -> None:
        """Starts it.

        Args:
            script: run as `python SCRIPT ARGUMENTS` would.
            arguments: its.
            log: where what it prints goes.
        """
        self._log = log
        self._process = start(script, arguments, log, log)

    @property
    def lines(self) -> list[str]:
        """What it has printed so far; a line that has no end yet is not among it."""
        text = self._log.read_text() if self._log.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Waits for something that it will print; raises AssertionError where it ends, or hangs, before."""
        end = monotonic() + timeout_s
        while not holds() and self._process.is_alive() and monotonic() < end:
            sleep(0.01)
        assert holds(), self.lines[-5:]

    def send_signal(self, number: int) -> None:
        """Sends it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def ended(self, timeout_s: float) -> int | None:
        """Its exit status, once it has ended; None where it hangs."""
        self._process.join(timeout_s)
        return self._process.exitcode

    def kill(self) -> None:
        """Ends it, stopped or not."""
        self._process.kill()
        self._process.join()


def run_script(script: Path | str, arguments: Sequence[object], folder: Path, *, timeout_s: float) -> str:
    """Runs `python SCRIPT ARGUMENTS`, or a module, in a folder; it may start processes of its own.

    Returns:
        What it printed.

    Raises:
        AssertionError: it failed, or hung; with the end of its errors.
    """
    with tempfile.TemporaryDirectory(prefix="taugrad-script-") as logs:
        out, errors = Path(logs) / "out", Path(logs) / "errors"
        of_its_own = {"environment": dict(os.environ), "folder": str(folder)}
        process = _start(script, arguments, out, errors, daemon=False, **of_its_own)
        process.join(timeout_s)
        code = process.exitcode
        process.kill()
        process.join()
        assert code == 0, f"{script} ended with {code} (None: it hung)\n{errors.read_text()[-3000:]}"
        return out.read_text()


def _work(
    script: str,
    arguments: list[str],
    out: str,
    errors: str,
    environment: dict[str, str],
    folder: str | None = None,
) -> None:
    """Runs the script in a forked process, in the environment of the tests in place of the server's."""
    os.environ.clear()
    os.environ.update(environment)
    # What it starts is forked by the server that forked it: Python would start another one.
    forkserver._forkserver.ensure_running = lambda: None
    for number, path in ((1, out), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    if folder is not None:
        os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    if script.endswith(".py"):
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
