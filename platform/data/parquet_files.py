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
from .text_files import files_below

_ENDS = {".parquet", ".parq", ".pq"}
_PARTS = ("train", "test", "val")


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
        DataError: there are none, a file is damaged or belongs to no part or to several, or files of a part
            have other columns than its first.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: is not a folder; expected one that holds Parquet files")
    by_part: dict[str, list[Path]] = {part: [] for part in _PARTS}
    for path in sorted(each for each in files_below(folder) if each.suffix.lower() in _ENDS):
        names = [each.lower() for each in path.relative_to(folder).parts]
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
