"""Examples read by Ray's tasks, in order.

Ray Train's workers hold CPUs for as long as they live, and tasks need some, too. Where all are held, tasks
would wait for ever. So they are begun only if one is not, and given up when they stand still: the worker
reads the rest without them.
"""

import logging
import sys
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .batches import Draw
from .errors import DataError

_LOG = logging.getLogger("taugrad.data")
_TASK_BYTES = 8 << 20
_TASK_ROWS = 256
"""A task reads rows of 8 MB together, 256 at most."""
_AHEAD = 8
"""Tasks whose rows are read before they are asked for."""
_STILL_S = 60.0
"""After how long without any progress tasks are given up."""

Indices = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]
"""By name, [rows, ...] each."""


class Reader(Protocol):
    """Reads examples. A part of it is pickled for every task, and torch must not be needed for it."""

    def __len__(self) -> int:
        """How many."""

    @property
    def bytes_each(self) -> int:
        """How large an example is between a task and this process, about."""

    def of(self, rows: Indices) -> "Reader":
        """A reader of some of the examples, in the order of their places."""

    def __call__(self, numbers: Indices, draw: Draw | None) -> Columns:
        """Reads examples; `numbers`, int64 [len], decide on their randomness (`draw`; None: not augmented).

        Returns `label`, int64 or float32 [rows], and `pixels`, uint8 [rows, size, size, channels], or
        `numbers`, float32 [rows, width]. Raises DataError: an example is damaged.
        """


def read_by_ray(parts: Sequence[Indices], read: Reader, draw: Draw | None) -> Iterator[Columns]:
    """What tasks have read for each part, in order; ends early where they cannot go on.

    Parts, int64 [n] each, are the numbers of the examples that are wanted together.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not parts:
        return
    left = _cpus_left(ray)
    if left < 1:
        _say(f"workers hold all CPUs but {left:g}, a task needs 1: they read their examples themselves")
        return
    try:
        with closing(_blocks(ray, np.concatenate(parts), read, draw)) as blocks:
            yield from _cut(blocks, [len(part) for part in parts])
    except TimeoutError:
        _say(f"Ray's tasks got no CPU for {_STILL_S:g} s: a worker reads its examples itself")
    except Exception as error:
        # Whoever asked reads on; if the data were at fault, it meets that and says so.
        cause = getattr(error, "cause", None) or error
        if not isinstance(cause, DataError):
            what = f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
            _say(f"Ray's tasks stopped ({what}): a worker reads its examples itself")


def _cpus_left(ray: Any) -> float:
    """CPUs that no worker and no trial holds; what is running on them now ends before long.

    Those that are idle at this moment would say too little: another worker's tasks may be at work.
    """
    groups = ray.util.placement_group_table().values()
    held: float = sum(
        bundle.get("CPU", 0.0)
        for group in groups
        if group["state"] != "REMOVED"
        for bundle in group["bundles"].values()
    )
    whole: float = ray.cluster_resources().get("CPU", 0.0)
    return whole - held


def _blocks(ray: Any, wanted: Indices, read: Reader, draw: Draw | None) -> Generator[Columns, None, None]:
    """What each task has read, in order; some are always ahead."""
    # On any machine: by default tasks would wait for CPUs of the worker's own placement group.
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_read)
    rows = max(1, min(_TASK_ROWS, _TASK_BYTES // read.bytes_each))
    coming: deque[Any] = deque()
    try:
        for at in range(0, len(wanted), rows):
            numbers = wanted[at : at + rows]
            coming.append(task.remote(read.of(numbers), numbers, draw))
            if len(coming) == _AHEAD:
                yield ray.get(coming[0], timeout=_STILL_S)
                coming.popleft()
        while coming:
            yield ray.get(coming[0], timeout=_STILL_S)
            coming.popleft()
    finally:
        for iterator in coming:  # else they go on
            ray.cancel(iterator)


def _read(read: Reader, numbers: Indices, draw: Draw | None) -> Columns:
    return read(numbers, draw)


def _cut(blocks: Iterator[Columns], lengths: Sequence[int]) -> Iterator[Columns]:
    """Blocks of any lengths, put together and cut into parts of the given ones."""
    held: list[Columns] = []
    for length in lengths:
        while (there := sum(len(block["label"]) for block in held)) < length:
            held.append(next(blocks))
        whole = {name: np.concatenate([block[name] for block in held]) for name in held[0]}
        yield {name: column[:length] for name, column in whole.items()}
        held = [{name: column[length:] for name, column in whole.items()}] if there > length else []


@cache
def _say(notice: str) -> None:
    """Once in a process."""
    _LOG.warning(notice)
