"""Workers of tests, a process each, forked from a server that has imported torch once.

A worker that imports torch itself spends two seconds on it, and the tests start some hundred workers.
"""

import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep

_FORKED = get_context("forkserver")
_FORKED.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "numba"])
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def run_workers(
    script: Path, arguments: Callable[[int], Sequence[object]], workers: int, *, timeout_s: float = 400
) -> None:
    """Runs a script by so many processes, and ends the others when one fails.

    Args:
        script: run as `python SCRIPT ARGUMENTS` would.
        arguments: of a rank.
        workers: how many.
        timeout_s: after which those that still run have hung.

    Raises:
        AssertionError: a worker failed, or hung; with the end of what each one printed.
    """
    with tempfile.TemporaryDirectory(prefix="taugrad-workers-") as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(workers)]
        processes = [forked(script, arguments(rank), log) for rank, log in enumerate(logs)]
        try:
            for process in processes:
                process.start()
            deadline = monotonic() + timeout_s
            while any(process.is_alive() for process in processes) and monotonic() < deadline:
                if any(process.exitcode for process in processes):
                    break
                sleep(0.05)
            codes = [process.exitcode for process in processes]
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
        output = "\n".join(log.read_text()[-3000:] for log in logs if log.exists())
    assert codes == [0] * workers, f"{script.name}: workers ended with {codes} (None: they hung)\n{output}"


def forked(script: Path, arguments: Sequence[object], log: Path) -> BaseProcess:
    """A process that runs a script as `python SCRIPT ARGUMENTS` would, before its start.

    Args:
        script: the script.
        arguments: its.
        log: where what it prints goes.
    """
    given = [str(each) for each in arguments]
    return _FORKED.Process(target=_work, args=(str(script), given, str(log), dict(os.environ)), daemon=True)


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
        self._process = forked(script, arguments, log)
        self._process.start()

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


def _work(script: str, arguments: list[str], log: str, environment: dict[str, str]) -> None:
    """Runs the script in a forked process, in the environment of the tests in place of the server's."""
    os.environ.update(environment | _ENVIRONMENT)
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
