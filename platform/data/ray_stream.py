"""Rows read by Ray Data, in order.

Ray Train's workers hold CPUs for as long as they live, and Ray Data's tasks need some, too. Where all are
held, tasks would wait for ever. So a pipeline is begun only if one is not, and given up when it stands still:
whoever asked reads the rest without it.
"""

import json
import logging
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DataError

_LOG = logging.getLogger("taugrad.data")
_TASK_BYTES = 8 << 20
_TASK_ROWS = 256
"""A task reads rows of 8 MB together, 256 at most."""
_STILL_S = 60.0
"""After how long without any progress a pipeline is given up; also when nobody took what it had."""

Indices = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]


def read_by_ray(
    parts: Sequence[Indices],
    tickets: Callable[[Indices], Columns],
    load: Callable[[Columns], dict[str, NDArray[Any]]],
    bytes_each: int,
) -> Iterator[Columns]:
    """What tasks have read for each part, in order; ends early where Ray Data cannot go on.

    Args:
        parts: int64 [n] each, the numbers of the examples that are wanted together.
        tickets: gives what `load` needs of some examples.
        load: run by the tasks.
        bytes_each: how large an example is, about.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized() or not parts:
        return
    done = 0
    while done < len(parts):
        left = _cpus_left(ray)
        if left < 1:
            _say(f"workers hold all CPUs but {left:g}, Ray Data needs 1: they read their examples themselves")
            return
        before = done
        try:
            with closing(_pipeline(parts[done:], tickets, load, bytes_each)) as pipeline:
                for loaded in pipeline:
                    yield loaded
                    done += 1
        except _errors("ExecutionTimeoutError"):
            # After a long evaluation, say, it is begun again.
            if done == before:
                _say(f"Ray Data's tasks got no CPU for {_STILL_S:g} s: a worker reads its examples itself")
                return
        except Exception as error:
            # Whoever asked reads on; if the data were at fault, it meets that and says so.
            cause = _cause(error)
            if not isinstance(cause, DataError):
                what = f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
                _say(f"Ray Data stopped ({what}): a worker reads its examples itself")
            return


def _cpus_left(ray: Any) -> float:
    """CPUs that no worker and no trial holds; what is running on them now ends before long.

    Those that are idle at this moment would say too little: another worker's pipeline may be at work.
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


def _pipeline(
    parts: Sequence[Indices],
    tickets: Callable[[Indices], Columns],
    load: Callable[[Columns], dict[str, NDArray[Any]]],
    bytes_each: int,
) -> Generator[Columns, None, None]:
    import ray.data  # noqa: PLC0415 - takes seconds

    flat = np.concatenate(parts)
    rows = max(1, min(_TASK_ROWS, _TASK_BYTES // bytes_each))
    # An item for each task; from_arrow and from_numpy would run a task for each of them here.
    items = [{"tickets": _written(tickets(flat[at : at + rows]))} for at in range(0, len(flat), rows)]
    asked = ray.data.from_items(items, override_num_blocks=len(items))
    dataset = asked.map_batches(_Task(load), batch_size=None, batch_format="numpy", num_cpus=1)
    context = dataset.context
    context.execution_options.preserve_order = True
    context.execution_no_progress_timeout_s = _STILL_S
    context.raise_original_map_exception = True
    context.enable_progress_bars = context.print_on_execution_start = False
    blocks: Any = iter(dataset.iter_batches(batch_size=None, batch_format="numpy"))
    try:
        yield from _cut(blocks, [len(part) for part in parts])
    finally:
        blocks.close()  # ends the tasks; else they go on until nobody holds the iterator


@dataclass(frozen=True)
class _Task:
    load: Callable[[Columns], dict[str, NDArray[Any]]]

    def __call__(self, items: Columns) -> dict[str, NDArray[Any]]:
        found = [self.load(_read(each)) for each in items["tickets"].tolist()]
        return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def _written(columns: Columns) -> str:
    return json.dumps({name: column.tolist() for name, column in columns.items()})


def _read(text: str) -> Columns:
    return {name: np.asarray(values) for name, values in json.loads(text).items()}


def _cut(blocks: Iterator[Columns], lengths: Sequence[int]) -> Iterator[Columns]:
    """Blocks of any lengths, put together and cut into parts of the given ones."""
    held: list[Columns] = []
    for length in lengths:
        while (there := sum(_rows(block) for block in held)) < length:
            held.append(next(blocks))
        whole = {name: np.concatenate([block[name] for block in held]) for name in held[0]}
        yield {name: column[:length] for name, column in whole.items()}
        held = [{name: column[length:] for name, column in whole.items()}] if there > length else []


def _rows(block: Columns) -> int:
    return len(next(iter(block.values())))


def _errors(name: str) -> type[BaseException] | tuple[()]:
    """An exception of Ray Data's, where this version of Ray has it."""
    exceptions = sys.modules.get("ray.data.exceptions")
    found: type[BaseException] | tuple[()] = getattr(exceptions, name, ())
    return found


def _cause(error: BaseException) -> BaseException:
    """What a task raised, without what Ray wraps it in."""
    while isinstance(inner := getattr(error, "cause", None) or error.__cause__, BaseException):
        error = inner
    return error


@cache
def _say(notice: str) -> None:
    """Once in a process."""
    _LOG.warning(notice)
