"""Compiled kernels: where numba keeps them, and a word while it compiles.

If neither the package's folder nor the user's can be written, they are kept in a folder for temporary files.
It must be the user's own: numba's files are pickles, and to read one is to run what it says. The first use on
a machine looks like a hang, and so it is announced.
"""

import logging
import os
import stat
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numba
from numba.core import event

REMEDY = "set NUMBA_CACHE_DIR to a folder that you can write and nobody else"
_LONG_S = 3.0
log = logging.getLogger("taugrad")


def ensure_cache() -> Path | None:
    """Gives numba a folder in the one for temporary files if it has none, and warns once.

    Processes that this one starts use the same. Returns None where numba finds a folder by itself.

    Raises:
        OSError: there is no folder for temporary files either.
    """
    try:
        numba.njit(cache=True)(_kernel)
    except RuntimeError:  # "no locator available"
        folder = _private_folder()
    else:
        return None
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010 (numba makes its settings at import)
    warnings.warn(f"taugrad keeps compiled code in {folder}; to keep it elsewhere, {REMEDY}", stacklevel=2)
    return folder


def _kernel() -> None:
    """A function in the folder of the kernels."""


def _private_folder() -> Path:
    """A folder that nobody but this user can write to: the same each time, or a new one if that is not so."""
    try:
        shared = Path(tempfile.gettempdir()) / f"taugrad-numba-{os.getuid()}"
        shared.mkdir(mode=0o700, exist_ok=True)
        status = shared.lstat()  # not what a link leads to
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return shared
    except FileExistsError:
        pass  # a file, or a link to nowhere, in its place
    except OSError as problem:
        raise OSError(f"no folder for compiled code can be written ({problem}); {REMEDY}") from None
    return Path(tempfile.mkdtemp(prefix="taugrad-numba-"))


class _Announcement(event.Listener):
    """Warns once per process, when its kernels have been compiled for three seconds in all."""

    def __init__(self) -> None:
        self._depth, self._spent_s, self._began = 0, 0.0, 0.0
        self._timer = threading.Timer(_LONG_S, self._warn)
        self._warned = False

    def on_start(self, _: event.Event) -> None:  # numba holds its compiler's lock
        self._depth += 1
        if self._depth == 1 and not self._warned:
            self._began = time.monotonic()
            self._timer = threading.Timer(max(0.0, _LONG_S - self._spent_s), self._warn)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, _: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0 and not self._warned:
            self._timer.cancel()
            self._spent_s += time.monotonic() - self._began

    def _warn(self) -> None:
        self._warned = True
        log.warning("compiling kernels for this machine, once; this may take a minute")


def announce() -> None:
    """Begins to watch the compiler."""
    event.register("numba:compile", _Announcement())
