"""The labels of Parquet files: whether all of them are ones, and how many classes there are."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .config import Parquet
from .errors import DataError
from .parquet_files import RowGroups, column_type
from .row_tasks import opened, read_group, targets
from .shape import Targets


def read_labels(
    train: RowGroups, test: RowGroups, config: Parquet
) -> tuple[tuple[str, ...] | None, int, Targets]:
    """The classes' names if they have some, how many outputs a model has, and what kind of targets these are.

    All labels are looked at; they are small, and Parquet reads them by themselves.

    Raises:
        DataError: a label is missing, is none of the classes, or no finite number; or there is one class.
    """
    dtype = column_type(train, config.label)
    if column_type(test, config.label) != dtype:
        raise DataError(f"{test.files[0]}: column {config.label!r} holds other values than {train.files[0]}")
    if pa.types.is_floating(dtype):
        for groups in (train, test):
            _check(groups, config.label, None, np.isfinite, "a finite number")
        return None, 1, "numbers"
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        found: set[str] = set()
        for _, _, column in _columns(train, config.label):
            found.update(pc.unique(column).drop_null().to_pylist())
        names = tuple(sorted(found))
        _check_count(train, config.label, len(names))
        for groups in (train, test):
            _check(groups, config.label, names, lambda labels: labels >= 0, "a class of the training part")
        return names, len(names), "classes"
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        count = config.classes
        if count is None:
            largest = (
                pc.max(column.cast(pa.int64())).as_py() for _, _, column in _columns(train, config.label)
            )
            count = max((each for each in largest if each is not None), default=0) + 1
        _check_count(train, config.label, count)
        for groups in (train, test):
            _check(
                groups,
                config.label,
                None,
                lambda labels: (labels >= 0) & (labels < count),
                f"one of 0..{count - 1}",
            )
        return None, count, "classes"
    raise DataError(f"{train.files[0]}: column {config.label!r} holds {dtype}; expected numbers or names")


def _columns(groups: RowGroups, label: str) -> Iterator[tuple[str, int, pa.ChunkedArray]]:
    """The labels of each row group, with its file and its first row there."""
    for which, number, start in zip(
        groups.file.tolist(), groups.number.tolist(), groups.start.tolist(), strict=True
    ):
        path = groups.files[which]
        with opened(path) as file:
            yield path, start, read_group(file, path, number, [label]).column(0)


def _check(
    groups: RowGroups,
    label: str,
    names: Sequence[str] | None,
    is_right: Callable[[NDArray[Any]], NDArray[np.bool_]],
    wanted: str,
) -> None:
    for path, start, column in _columns(groups, label):
        wrong = (
            ~is_right(targets(pc.drop_null(column), names))
            if not column.null_count
            else np.array(column.is_null())
        )
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(
                f"{path}: row {start + at}: {label} is {column[at].as_py()!r:.60}; expected {wanted}"
            )


def _check_count(groups: RowGroups, label: str, count: int) -> None:
    if count < 2:
        raise DataError(f"{groups.files[0]}: {label} has {count} classes; expected two or more")
