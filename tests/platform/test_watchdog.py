"""What a command started ends with it, even when the command is killed."""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

PARENT = """
import os, signal, subprocess, sys, time
from taugrad.platform.watchdog import watched

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background

# Its child has not the mark any more, as those of Ray's processes that write their title over it.
child = "import subprocess as s, sys; s.run([sys.executable, '-c', 'import time; time.sleep(600)'], env={})"
with watched() as mark:
    # In a session of its own, as MLflow's server and many of Ray's processes are.
    subprocess.Popen([sys.executable, "-c", child], env=os.environ | mark, start_new_session=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(other.pid, flush=True)
    sys.stdin.readline()
"""


def started() -> tuple[subprocess.Popen[str], psutil.Process, list[psutil.Process]]:
    """A command, what it started without the mark, and what has it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    other = psutil.Process(int(process.stdout.readline()))
    deadline = time.monotonic() + 60
    while True:
        family = psutil.Process(process.pid).children(recursive=True)
        marked = [each for each in family if each != other and "time.sleep(600)" in " ".join(each.cmdline())]
        if len(marked) == 2:
            return process, other, marked
        assert time.monotonic() < deadline, family
        time.sleep(0.1)


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_what_a_killed_command_started_ends(sign):
    process, other, marked = started()
    try:
        time.sleep(3)  # the watchdog looks every second
        process.send_signal(sign)
        process.wait(30)
        deadline = time.monotonic() + 30
        while any(map(runs, marked)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert runs(other)
    finally:
        for each in (other, *marked):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def test_a_command_that_ends_by_itself_leaves_that_to_whoever_ends_it():
    process, other, marked = started()
    try:
        process.stdin.close()
        assert process.wait(30) == 0
        time.sleep(1)
        assert all(map(runs, (other, *marked)))
    finally:
        for each in (other, *marked):
            with suppress(psutil.NoSuchProcess):
                each.kill()
