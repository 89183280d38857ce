"""How every command ends: by itself, by Ctrl-C, by `kill`, or because nobody reads what it prints.

What it prints ends none: a character that the output cannot hold is escaped.
"""

import codecs
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from taugrad.platform.exit_codes import INTERRUPTED, TERMINATED, UNREAD, Terminated


def run(command: Callable[[], int]) -> int:
    """Runs a command; SIGTERM ends it as Ctrl-C does, once.

    Returns:
        Its exit code; 143 when it was ended by SIGTERM, 130 by Ctrl-C, 141 when nobody reads its output.
    """
    _print_anything()
    terminated = False

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal terminated
        if not terminated:  # a second one must not cut the first one's cleaning up short
            terminated = True
            raise Terminated

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if in_main else None
    try:
        code = _with_output(command)
    except KeyboardInterrupt:
        print(f"taugrad: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
        code = INTERRUPTED
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
    return TERMINATED if terminated and code == INTERRUPTED else code


def _print_anything() -> None:
    """Escapes characters that the output cannot hold, here and in processes that are started here."""
    escaping = "backslashreplace"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=escaping)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if codecs.lookup(encoding).name != "utf-8":
        os.environ["PYTHONIOENCODING"] = f"{encoding}:{escaping}"


def _with_output(command: Callable[[], int]) -> int:
    """Runs a command whose reader may go away, as `head` does."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _unread():
            raise
        # The interpreter flushes once more at its end.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD


def _unread() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))
