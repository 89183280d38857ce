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
from typing import Any

from taugrad.platform.exit_codes import INTERRUPTED, TERMINATED, UNREAD


def run(command: Callable[[], int], again: str = "") -> int:
    """Runs a command; Ctrl-C and SIGTERM end it, once: a second one must not cut its cleaning up short.

    Args:
        command: returns an exit code. The text of a `KeyboardInterrupt` that it raises says how to go on.
        again: the line to go on with where it does not say so; empty: there is nothing to go on with.

    Returns:
        Its exit code; 143 when it was ended by SIGTERM, 130 by Ctrl-C, 141 when nobody reads its output.
    """
    _print_anything()
    ended: list[int] = []

    def end(signum: int, frame: FrameType | None) -> None:
        ended.append(signum)
        if len(ended) == 1:
            raise KeyboardInterrupt
        if len(ended) == 2 and signum == signal.SIGINT:
            with suppress(OSError):  # print() may be in the middle of a line
                os.write(2, b"\ntaugrad: ending, which takes a few seconds\n")

    before = _handle(end)
    try:
        code = _with_output(command)
    except KeyboardInterrupt as interrupt:
        what = "terminated" if signal.SIGTERM in ended[:1] else "interrupted"
        how = str(interrupt) or (again and f"continue with: {again}")
        print(f"taugrad: {what}{'; ' * bool(how)}{how}", file=sys.stderr)
        code = INTERRUPTED
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return TERMINATED if signal.SIGTERM in ended[:1] and code == INTERRUPTED else code


def _handle(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Handles SIGTERM, and SIGINT unless it is ignored, as in a shell's background; the handlers before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handled_signals = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handled_signals.append(signal.SIGINT)
    return {signum: signal.signal(signum, handler) for signum in handled_signals}


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
