"""Programs that a test starts, and what it waits for: no test depends on how long anything takes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psutil

TIMEOUT_S = 480  # other tests run at the same time
GENEROUS_S = 50  # ten times what is promised of a refusal: this machine may be busy
Found = TypeVar("Found")


def until(
    condition: Callable[[], Found],
    said: Callable[[], object] = str,
    *,
    goes_on: Callable[[], bool] = lambda: True,
    timeout_s: float = TIMEOUT_S,
) -> Found:
    """Asks again and again until the answer is true, and gives it back.

    Args:
        found: what is asked.
        said: explains a failure.
        goes_on: whether it can still become true.
        timeout_s: many times what it takes.

    Raises:
        AssertionError: it did not become true.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        may_come = goes_on() and time.monotonic() < deadline
        if answer := condition():
            return answer
        assert may_come, said()
        time.sleep(0.05)


def lives(process: psutil.Process) -> bool:
    """Whether a process runs, and is not only waiting for its parent to ask how it ended."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def ended(command: Sequence[object], **options: Any) -> "subprocess.CompletedProcess[str]":
    """A command that has come to its end, and what it has said."""
    usual = {"capture_output": True, "text": True, "timeout": TIMEOUT_S}
    return subprocess.run([*map(str, command)], check=False, **usual | options)


def said_by(command: Sequence[object], **options: Any) -> str:
    """What a command says that must end well."""
    answer = ended(command, **options)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@contextmanager
def program(source: str, *arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program in Python, with pipes to and from it; it ends with the context."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        **{"stdin": pipe, "stdout": pipe, "text": True} | options,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            with suppress(OSError):  # what it has not read
                stream.close()
