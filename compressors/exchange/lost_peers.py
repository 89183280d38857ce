"""Turns the transport's errors about a lost or silent worker into a sentence that names the worker.

A worker may be silent for the timeout of the process group: half an hour for gloo, unless
`init_process_group(timeout=...)` sets another one. It applies to collectives and to single messages.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import EVERYBODY, PeerLost

_SILENT = re.compile(r"timed? ?out", re.IGNORECASE)
_GONE = re.compile(
    r"(connection|socket) closed|reset by peer|broken pipe|pair closure|unreachable|no route", re.IGNORECASE
)
_MILLISECONDS = re.compile(r"(\d+) ?ms")
_PLACE = re.compile(r"^\[[^\]]*\] *")
"""Where in its source the transport raised it."""


@contextmanager
def reaching(worker: int = EVERYBODY) -> Iterator[None]:
    """Names the worker that could not be reached inside.

    Raises:
        PeerLost: the worker is gone, or has been silent for longer than the process group allows.
    """
    try:
        yield
    except PeerLost:
        raise
    except RuntimeError as problem:
        text = _PLACE.sub("", str(problem)).partition("\n")[0].strip()
        if _SILENT.search(text):
            told = _MILLISECONDS.search(text)
            time = f"for {int(told[1]) / 1000:g} s, the process group's timeout" if told else "for too long"
            reason = f"has sent nothing {time}: its process hangs, is stopped, or cannot be reached"
            raise PeerLost(worker, reason) from problem
        if _GONE.search(text):
            raise PeerLost(worker, f"is gone: {text.partition('. ')[0]}") from problem
        raise
