"""Where processes listen."""

from contextlib import suppress

import psutil

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def family_of(pid: int) -> list[psutil.Process]:
    """A process and its descendants; none where it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def listeners(family: list[psutil.Process]) -> set[str]:
    """The addresses on which processes listen."""
    found: set[str] = set()
    for process in family:
        with suppress(psutil.Error):
            found |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return found
