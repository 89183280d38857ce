"""Where numba keeps compiled kernels if neither the package's folder nor the user's can be written.

Such a folder must be the user's own: numba's files are pickles, and to read one is to run what it says.
"""

import os
import stat
import tempfile
import warnings
from pathlib import Path

import numba

REMEDY = "set NUMBA_CACHE_DIR to a folder that you can write and nobody else"


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
