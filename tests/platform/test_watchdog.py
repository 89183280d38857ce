"""What a command started ends with it, even when the command is killed."""

import signal
import time
from contextlib import suppress

import psutil
import pytest
from waiting import TIMEOUT_S, lives, program, until

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


@pytest.fixture
def started():
    """A command, what it started without the mark, and what has it."""
    with program(PARENT) as process:
        other = psutil.Process(int(process.stdout.readline()))

        def marked() -> list[psutil.Process]:
            family = psutil.Process(process.pid).children(recursive=True)
            results = [
                process
                for process in family
                if process != other and "time.sleep(600)" in " ".join(process.cmdline())
            ]
            return results if len(results) == 2 else []

        result = until(marked)
        yield process, other, result
        for child in (other, *result):
            with suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.mark.parametrize(("sign", "runs_s"), [(signal.SIGKILL, 2), (signal.SIGINT, 0)])
def test_what_a_killed_command_started_ends(sign, runs_s, started):
    process, other, marked = started
    time.sleep(runs_s)  # the watchdog looks every second
    process.send_signal(sign)
    process.wait(TIMEOUT_S)
    until(lambda: not any(map(lives, marked)))
    assert lives(other)


def test_a_command_that_ends_by_itself_leaves_its_children(started):
    process, other, marked = started
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait(TIMEOUT_S) == 0
    time.sleep(1)
    assert all(map(lives, (other, *marked)))
