"""Which Parquet files there are, and the row groups in them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import DataError
from .row_tasks import opened

_TRAIN = ("train",)
_TEST = ("test", "val")


@dataclass(frozen=True, eq=False)
class RowGroups:
    """The row groups of some files, in the order of the files' names."""

    files: tuple[str, ...]
    file: NDArray[np.int64]
    """[groups], which file it is in."""
    number: NDArray[np.int64]
    """[groups], which one of its file."""
    start: NDArray[np.int64]
    """[groups], its first row in the file."""
    offsets: NDArray[np.int64]
    """[groups + 1], its first row among all."""
    schema: pa.Schema
    digest: str
    """Of names, sizes and numbers of rows."""

    def __len__(self) -> int:
        return int(self.offsets[-1])


def find(folder: Path) -> tuple[RowGroups, RowGroups]:
    """The row groups of the training part and of the test part.

    Raises:
        DataError: there are none, a file is damaged, or files of a part have other columns than its first.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: is not a folder; expected one that holds Parquet files")
    files = sorted(folder.rglob("*.parquet"))
    parts = []
    for wanted in (_TRAIN, _TEST):
        # The first beginning that there is: test rather than validation.
        by_start = ([each for each in files if _begins(each.relative_to(folder), start)] for start in wanted)
        chosen = next(filter(None, by_start), [])
        if not chosen:
            raise DataError(
                f"{folder}: holds {len(files)} Parquet files, but none that begins with "
                f"{' or '.join(wanted)} or lies in such a folder"
            )
        parts.append(_described(folder, chosen))
    train, test = parts
    return train, test


def _begins(path: Path, start: str) -> bool:
    return any(part.startswith(start) for part in path.parts)


def _described(folder: Path, paths: Sequence[Path]) -> RowGroups:
    places: list[tuple[int, int, int, int]] = []  # file, number, start, rows
    digest = hashlib.sha256()
    schema: pa.Schema | None = None
    for i, path in enumerate(paths):
        with opened(str(path)) as file:
            found = file.schema_arrow
            lengths = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        if schema is not None and not found.equals(schema):
            raise DataError(f"{path}: has other columns than {paths[0]}")
        schema = found
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
    """What a column holds.

    Raises:
        DataError: there is no such column.
    """
    if column not in groups.schema.names:
        raise DataError(
            f"{groups.files[0]}: has no column {column!r}; it has {', '.join(groups.schema.names)}"
        )
    return groups.schema.field(column).type
