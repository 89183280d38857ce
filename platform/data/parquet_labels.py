"""The labels of Parquet files: whether all of them are ones, and how many classes there are."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from .config import MOST_CLASSES, Parquet
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
        names = tuple(sorted(_different(train, config)))
        _check_count(train, config.label, len(names))
        for groups in (train, test):
            _check(groups, config.label, names, lambda labels: labels >= 0, "a class of the training part")
        return names, len(names), "classes"
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        count = config.classes or _numbered(train, config)
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


def _numbered(train: RowGroups, config: Parquet) -> int:
    """How many classes there are, where labels are 0, 1, ... and nothing else.

    A label beyond them is more likely an identifier than a class, and the model's last layer has a row each.
    """
    found = {int(each) for each in _different(train, config) if each >= 0}  # others are named with their row
    missing = next((i for i in range(len(found)) if i not in found), None)
    if missing is not None:
        raise DataError(
            f"{train.files[0]}: {config.label} has {len(found)} different labels, up to {max(found)}, but "
            f"none is {missing}; expected all of 0..{len(found) - 1}. If these are classes, set "
            "data.classes, or make the labels names"
        )
    return len(found)


def _different(train: RowGroups, config: Parquet) -> set[Any]:
    """The labels that occur in the training part, each once; nulls do not count.

    Raises:
        DataError: there are more than anyone's classes, so that they seem to be identifiers.
    """
    most = max(config.classes or 0, MOST_CLASSES)
    found: set[Any] = set()
    for path, start, column in _columns(train, config.label):
        found.update(pc.unique(column).drop_null().to_pylist())
        if len(found) > most:
            raise DataError(
                f"{path}: row {start + len(column) - 1}: {config.label} has more than {most} different "
                "labels up to here; expected classes, or data.classes for so many"
            )
    return found


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
