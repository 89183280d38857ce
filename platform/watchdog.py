"""Ends the processes that a command started if the command itself is gone, however it ended.

A process that is killed cleans nothing up. So a second, small one waits for its end: it reads a pipe that
only the command holds open.
"""

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator

MARK = "_TAUGRAD_STARTED_BY"
"""The environment variable by which the processes of a command are known."""

# Needs only the standard library, so that it is there in 50 ms. Some processes of Ray write their title
# over their environment: so what has the mark is written down every second, and so are its children.
_WATCH = """
import os, select, signal, sys, time
mark = sys.argv[1].encode()
ours = {}

def look():
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                with open(f"/proc/{name}/environ", "rb") as file:
                    marked = mark in file.read().split(b"\\0")
            except OSError:
                continue
            found[int(name)] = int(fields[1]), fields[19], marked
    for pid in [pid for pid in ours if pid not in found or found[pid][1] != ours[pid]]:
        del ours[pid]
    before = -1
    while len(ours) > before:
        before = len(ours)
        for pid, (parent, begun, marked) in found.items():
            if marked or parent in ours:
                ours[pid] = begun

for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(sign, signal.SIG_IGN)
while not select.select([0], [], [], 1)[0]:
    look()
if os.read(0, 1):
    sys.exit()
for pause in (0, 0.5, 2):
    time.sleep(pause)
    look()
    for pid in list(ours):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
"""


@contextlib.contextmanager
def watched() -> Iterator[dict[str, str]]:
    """Has all processes that get an environment killed when this process is gone before the context ends.

    Yields the mark, to be added to the environment of what is started; whatever that starts inherits it.
    """
    mark = {MARK: uuid.uuid4().hex}
    try:
        # A session of its own: what ends the command's group, such as Ctrl-C, is not for the watchdog.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH, f"{MARK}={mark[MARK]}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no more processes are allowed: what needs more than one will say so
        yield mark
        return
    assert process.stdin is not None
    try:
        yield mark
    except BaseException:
        process.stdin.close()  # what is being started when Ctrl-C comes is nobody's yet: it is killed
        raise
    with contextlib.suppress(OSError):
        process.stdin.write(b"all is well")
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
