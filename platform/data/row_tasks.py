"""Reading rows of Parquet files, wherever that is done: in this process, or in Ray's tasks.

A row group is what Parquet can read by itself. Rows are asked for in an order that mixes a few row groups, so
these are kept from one call to the next, by every thread that reads.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .batches import Draw
from .errors import DataError
from .image_file import Framing


class _Kept(threading.local):
    """The row groups of a thread: evaluations read beside the thread that reads training batches ahead."""

    def __init__(self) -> None:
        self.groups: OrderedDict[tuple[str, int, tuple[str, ...]], pa.Table] = OrderedDict()


kept = _Kept()


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
    """Hash of names, sizes and numbers of rows."""

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def place(self, group: int) -> tuple[str, int, int]:
        """A row group's file, which one of that it is, and its first row there."""
        return self.files[self.file[group]], int(self.number[group]), int(self.start[group])


@dataclass(frozen=True, eq=False)
class Rows:
    """Reads rows; see `ray_stream.Reader`."""

    groups: RowGroups
    inputs: tuple[str, ...]
    """Columns."""
    label: str
    classes: tuple[str, ...] | None
    """The classes, where labels are names."""
    width: int
    """For numbers."""
    framing: Framing | None
    """For images."""
    most_held: int
    """Row groups that a thread keeps."""
    chosen: NDArray[np.int64] | None = None
    """Which rows, among those of all groups; None: all."""

    def __len__(self) -> int:
        return len(self.groups if self.chosen is None else self.chosen)

    @property
    def bytes_each(self) -> int:
        """See `ray_stream.Reader.bytes_each`."""
        return self.framing.bytes if self.framing else 4 * self.width

    def of(self, rows: NDArray[np.int64]) -> "Rows":
        """See `ray_stream.Reader.of`."""
        return replace(self, chosen=rows if self.chosen is None else self.chosen[rows])

    def __call__(self, numbers: NDArray[np.int64], draw: Draw | None) -> dict[str, NDArray[Any]]:
        """Reads the rows; see `ray_stream.Reader`."""
        assert self.chosen is not None, "nobody reads all rows at once"
        count = len(self.chosen)
        if self.framing:
            side = self.framing.size
            name, inputs = "pixels", np.empty((count, side, side, self.framing.channels), np.uint8)
        else:
            name, inputs = "numbers", np.empty((count, self.width), np.float32)
        labels: NDArray[Any] | None = None
        places = np.searchsorted(self.groups.offsets, self.chosen, side="right") - 1
        # In the order in which they are needed first: those that are kept in the end are needed next.
        for group in dict.fromkeys(places.tolist()):
            here = np.flatnonzero(places == group)
            path, number, start = self.groups.place(group)
            within = self.chosen[here] - self.groups.offsets[group]
            columns = (*dict.fromkeys((*self.inputs, self.label)),)
            table = row_group(path, number, columns, self.most_held).take(within)
            if self.framing:
                generators = [draw.of(number) if draw else None for number in numbers[here].tolist()]
                inputs[here] = self._pixels(table, path, start + within, generators)
            else:
                inputs[here] = self._numbers(table, path, start + within)
            converted = targets(table.column(self.label), self.classes)
            if labels is None:
                labels = np.empty(count, converted.dtype)
            labels[here] = converted
        assert labels is not None
        return {name: inputs, "label": labels}

    def _pixels(
        self,
        table: pa.Table,
        path: str,
        rows: NDArray[np.int64],
        generators: Sequence[np.random.Generator | None],
    ) -> NDArray[np.uint8]:
        assert self.framing is not None
        column = table.column(self.inputs[0])
        if pa.types.is_struct(column.type):
            column = pc.struct_field(column, "bytes")
        pixels = []
        for data, row, generator in zip(column.to_pylist(), rows.tolist(), generators, strict=True):
            where = f"{path}: row {row}: {self.inputs[0]}"
            if data is None:
                raise DataError(f"{where}: is null; expected an encoded image")
            pixels.append(self.framing.pixels(data, where, generator))
        return np.stack(pixels)

    def _numbers(self, table: pa.Table, path: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        parts = []
        for name in self.inputs:
            column = table.column(name).combine_chunks()
            if is_list(column.type):
                lengths = np.array(pc.fill_null(pc.list_value_length(column), 0))
                if len(wrong := np.flatnonzero(lengths != self.width)):
                    problem = f"{name} has {lengths[wrong[0]]} numbers; expected {self.width}"
                    raise DataError(f"{path}: row {rows[wrong[0]]}: {problem}")
                column = pc.list_flatten(column)
            part = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
            parts.append(part.reshape(len(rows), -1))
        numbers: NDArray[np.float32] = np.concatenate(parts, axis=1)
        if not np.isfinite(numbers).all():
            at, place = np.argwhere(~np.isfinite(numbers))[0].tolist()
            raise DataError(
                f"{path}: row {rows[at]}: number {place} is {numbers[at, place]}; every one must be finite"
            )
        return numbers


def targets(column: pa.ChunkedArray, classes: Sequence[str] | None) -> NDArray[Any]:
    """A column of labels: int64 [rows], in 0..classes-1 where all is well, or float32 [rows]."""
    if classes is not None:
        column = pc.fill_null(pc.index_in(column, value_set=pa.array(classes, column.type)), -1)
    dtype = pa.float32() if pa.types.is_floating(column.type) else pa.int64()
    values: NDArray[Any] = column.cast(dtype, safe=False).to_numpy()
    return values


def is_list(dtype: pa.DataType) -> bool:
    """Whether a column holds a list in each row."""
    return bool(
        pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype)
    )


def row_group(path: str, group: int, columns: tuple[str, ...], most: int) -> pa.Table:
    """Some columns of a row group; the last few are kept. Raises as `read_group` does."""
    key = (path, group, columns)
    if key in kept.groups:
        kept.groups.move_to_end(key)
        return kept.groups[key]
    table = kept.groups[key] = read_group(path, group, columns)
    while len(kept.groups) > most:
        kept.groups.popitem(last=False)
    return table


def opened(path: str) -> pq.ParquetFile:
    """A Parquet file; raises DataError: it is none, or cannot be read."""
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: is not a complete Parquet file ({_line(error)})") from error


def read_group(path: str, group: int, columns: Sequence[str]) -> pa.Table:
    """Some columns of a row group; raises DataError: it is damaged, or a column holds pickled objects."""
    with opened(path) as file:
        try:
            table = file.read_row_group(group, columns=list(columns), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: row group {group} is damaged ({_line(error)})") from error
    for field in table.schema:
        require_no_objects(field, path, field.name)
    return table


_EXTENSION = b"ARROW:extension:name"
_PICKLED = "ray.data.arrow_pickled_object"


def require_no_objects(field: pa.Field, path: str, column: str) -> None:
    """Refuses a column of a type whose values are made by Python code, such as Ray Data's pickled objects.

    Where Ray Data is loaded, to look at such a value unpickles it, which runs whatever code it names. Where
    it is not, the column looks like one of bytes: the name of its type stands beside it.
    """
    named = (field.metadata or {}).get(_EXTENSION, b"").decode(errors="replace")
    if isinstance(field.type, pa.ExtensionType) or named == _PICKLED:
        raise DataError(
            f"{path}: column {column!r} holds {named or field.type.extension_name}; expected numbers, names "
            "or encoded images: other objects are not read, since that could run code from the file"
        )
    for place in range(field.type.num_fields):
        require_no_objects(field.type.field(place), path, column)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
