"""Where processes listen."""

from contextlib import suppress

import psutil

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def listeners(family: list[psutil.Process]) -> set[str]:
    """The addresses on which processes listen."""
    results: set[str] = set()
    for process in family:
        with suppress(psutil.Error):
            results |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return results
