"""Which Parquet files there are, the row groups in them, and whether all labels are ones."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..spec.data import MOST_CLASSES, Parquet
from .errors import DataError
from .row_tasks import RowGroups, opened, read_group, targets
from .shape import Targets
from .text_files import files_below

_ENDS = {".parquet", ".parq", ".pq"}
_PARTS = ("train", "test", "val")


def find(folder: Path) -> tuple[RowGroups, RowGroups]:
    """The row groups of the training part and of the test part.

    Raises DataError: there are none, a file is damaged or belongs to no part or to several, or files of a
    part have other columns than its first.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: is not a folder; expected one that holds Parquet files")
    by_part: dict[str, list[Path]] = {part: [] for part in _PARTS}
    for path in sorted(file for file in files_below(folder) if file.suffix.lower() in _ENDS):
        names = [part.lower() for part in path.relative_to(folder).parts]
        parts = [part for part in _PARTS if any(name.startswith(part) for name in names)]
        if len(parts) != 1:
            problem = f"belongs to {' and '.join(parts)}" if parts else "belongs to no part"
            raise DataError(
                f"{path}: {problem}; its name, or a folder that it lies in, must begin with one of train, "
                f"test and val; move it out of {folder} if it is none of these"
            )
        by_part[parts[0]].append(path)
    train, test = by_part["train"], by_part["test"] or by_part["val"]
    if not (train and test):
        raise DataError(
            f"{folder}: holds {sum(map(len, by_part.values()))} Parquet files, but none that begins with "
            f"{'test or val' if train else 'train'} or lies in such a folder"
        )
    return _described(folder, train), _described(folder, test)


def _described(folder: Path, paths: Sequence[Path]) -> RowGroups:
    places: list[tuple[int, int, int, int]] = []  # file, number, start, rows
    digest = hashlib.sha256()
    schema: pa.Schema | None = None
    for i, path in enumerate(paths):
        with opened(str(path)) as file:
            arrow_schema = file.schema_arrow
            lengths = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        if schema is not None and not arrow_schema.equals(schema):
            raise DataError(f"{path}: has other columns than {paths[0]}")
        schema = arrow_schema
        starts = np.cumsum([0, *lengths])
        places += [(i, g, int(starts[g]), rows) for g, rows in enumerate(lengths) if rows]
        named = path.relative_to(folder).as_posix().encode(errors="surrogateescape")
        digest.update(named + f"\0{path.stat().st_size}\0{lengths}\0".encode())
    if not places:
        raise DataError(f"{paths[0]}: holds no rows")
    assert schema is not None
    file_, number, start, rows = np.array(places, np.int64).T
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])
    files = tuple(str(path.absolute()) for path in paths)
    return RowGroups(files, file_, number, start, offsets, schema, digest.hexdigest())


def column_type(groups: RowGroups, column: str) -> pa.DataType:
    """What a column holds; raises DataError: there is no such column."""
    if column not in groups.schema.names:
        raise DataError(
            f"{groups.files[0]}: has no column {column!r}; it has {', '.join(groups.schema.names)}"
        )
    return groups.schema.field(column).type


def read_labels(
    train: RowGroups, test: RowGroups, config: Parquet
) -> tuple[tuple[str, ...] | None, int, Targets]:
    """The classes' names if they have some, how many outputs a model has, and what kind of targets these are.

    All labels are looked at; they are small, and Parquet reads them by themselves. Raises DataError: a label
    is missing, is none of the classes, or no finite number; or there is one class.
    """
    dtype = column_type(train, config.label)
    if column_type(test, config.label) != dtype:
        raise DataError(f"{test.files[0]}: column {config.label!r} holds other values than {train.files[0]}")
    names: tuple[str, ...] | None = None
    if pa.types.is_floating(dtype):
        for groups in (train, test):
            _check(groups, config.label, None, np.isfinite, "a finite number")
        return None, 1, "numbers"
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        names = tuple(sorted(_different(train, config)))
        count, wanted = len(names), "a class of the training part"
    elif pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        count = config.classes or _numbered(train, config)
        wanted = f"one of 0..{count - 1}"
    else:
        raise DataError(f"{train.files[0]}: column {config.label!r} holds {dtype}; expected numbers or names")
    if count < 2:
        raise DataError(f"{train.files[0]}: {config.label} has {count} classes; expected two or more")
    for groups in (train, test):
        _check(groups, config.label, names, lambda labels: (labels >= 0) & (labels < count), wanted)
    return names, count, "classes"


def _numbered(train: RowGroups, config: Parquet) -> int:
    """How many classes there are, where labels are 0, 1, ... and nothing else.

    A label beyond them is more likely an identifier than a class, and the model's last layer has a row each.
    """
    labels = {
        int(label) for label in _different(train, config) if label >= 0
    }  # others are named with their row
    missing = next((i for i in range(len(labels)) if i not in labels), None)
    if missing is not None:
        raise DataError(
            f"{train.files[0]}: {config.label} has {len(labels)} different labels, up to {max(labels)}, but "
            f"none is {missing}; expected all of 0..{len(labels) - 1}. If these are classes, set "
            "data.classes, or make the labels names"
        )
    return len(labels)


def _different(train: RowGroups, config: Parquet) -> set[Any]:
    """The labels that occur in the training part, each once; nulls do not count.

    Raises DataError: there are so many that they seem to be identifiers.
    """
    most = max(config.classes or 0, MOST_CLASSES)
    values: set[Any] = set()
    for path, start, column in _columns(train, config.label):
        values.update(pc.unique(column).drop_null().to_pylist())
        if len(values) > most:
            raise DataError(
                f"{path}: row {start + len(column) - 1}: {config.label} has more than {most} different "
                "labels up to here; expected classes, or data.classes for so many"
            )
    return values


def _columns(groups: RowGroups, label: str) -> Iterator[tuple[str, int, pa.ChunkedArray]]:
    """The labels of each row group, with its file and its first row there."""
    for group in range(len(groups.file)):
        path, number, start = groups.place(group)
        yield path, start, read_group(path, number, [label]).column(0)


def _check(
    groups: RowGroups,
    label: str,
    names: Sequence[str] | None,
    is_right: Callable[[NDArray[Any]], NDArray[np.bool_]],
    wanted: str,
) -> None:
    for path, start, column in _columns(groups, label):
        wrong = np.array(column.is_null()) if column.null_count else ~is_right(targets(column, names))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(
                f"{path}: row {start + at}: {label} is {column[at].as_py()!r:.60}; expected {wanted}"
            )
