"""Rows of Parquet files: images or numbers, with classes or numbers as targets."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..spec.data import Parquet
from .errors import DataError, needed
from .examples import Draw, Parts, evenly_spaced
from .image_file import Framing
from .parquet_files import column_type, find, read_labels
from .pixels import Normalization
from .row_tasks import RowGroups, Rows, is_list, read_group
from .shape import Shape
from .streamed import Streamed


def load_parquet(config: Parquet) -> Parts:
    """Reads the files' descriptions and all labels; a row is read when a batch needs it.

    Inputs are images, float32 [channels, size, size], or numbers, float32 [width]; targets are classes or
    numbers. The fingerprint is of names, sizes and numbers of rows. Raises DataError: a file or a column is
    missing, a label is none, a file is damaged, or Pillow is missing.
    """
    train, test = find(config.path)
    columns = (config.input,) if isinstance(config.input, str) else config.input
    images = _is_image(train, columns[0])
    if images:
        needed("PIL.Image", f"data.input = {columns[0]}, which holds images,")
        if len(columns) > 1:
            raise DataError(
                f"input names {len(columns)} columns, of which {columns[0]} holds images; name one"
            )
    if _is_image(test, columns[0]) != images:
        raise DataError(
            f"{test.files[0]}: column {columns[0]!r} holds {column_type(test, columns[0])}, "
            f"{column_type(train, columns[0])} in {train.files[0]}; expected the same kind"
        )
    width = 0 if images else _width(train, columns)
    if not images and (test_width := _width(test, columns)) != width:
        raise DataError(f"{test.files[0]}: row 0: {columns[0]} has {test_width} numbers; expected {width}")
    names, outputs, kind = read_labels(train, test, config)
    framing = Framing.of(config) if images else None
    normalize = Normalization.asked(config) if images else None

    def rows(groups: RowGroups) -> Rows:
        return Rows(groups, columns, config.label, names, width, framing, config.shuffle_groups)

    judged = rows(test).of(evenly_spaced(len(test), config.test_examples))
    shape = (config.channels, config.size, config.size) if images else (width,)
    return Parts(
        _Mixed(rows(train), normalize, augment=config.augment and images),
        Streamed(judged, normalize, augment=False),
        Shape(shape, outputs, kind),
        hashlib.sha256((train.digest + test.digest).encode()).hexdigest(),
    )


class _Mixed(Streamed):
    """Rows in a random order, in which they can be read at once."""

    def __init__(self, read: Rows, normalize: Normalization | None, *, augment: bool) -> None:
        super().__init__(read, normalize, augment=augment)
        self._offsets, self._mixed = read.groups.offsets, read.most_held

    def order(self, draw: Draw) -> NDArray[np.int64]:
        """Row groups in a random order; the rows of a few are mixed."""
        generator = np.random.default_rng([draw.seed, draw.epoch])
        offsets, mixed = self._offsets, self._mixed
        groups = generator.permutation(len(offsets) - 1)
        pools = []
        for first in range(0, len(groups), mixed):
            rows = [np.arange(offsets[i], offsets[i + 1]) for i in groups[first : first + mixed].tolist()]
            pools.append(generator.permutation(np.concatenate(rows)))
        return np.concatenate(pools).astype(np.int64, copy=False)


def _is_image(groups: RowGroups, column: str) -> bool:
    dtype = column_type(groups, column)
    if pa.types.is_struct(dtype):  # as Hugging Face's datasets keep images
        return any(field.name == "bytes" and _is_binary(field.type) for field in dtype)
    return _is_binary(dtype)


def _is_binary(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype))


def _width(groups: RowGroups, columns: Sequence[str]) -> int:
    """How many numbers the first row's inputs have; rows are looked at as they are read."""
    for column in columns:
        dtype = column_type(groups, column)
        inside = dtype.value_type if is_list(dtype) and len(columns) == 1 else dtype
        if not (pa.types.is_integer(inside) or pa.types.is_floating(inside) or pa.types.is_boolean(inside)):
            raise DataError(
                f"{groups.files[0]}: column {column!r} holds {dtype}; expected encoded images (binary), "
                "numbers, or, as the only column, lists of numbers"
            )
    dtype = column_type(groups, columns[0])
    if not is_list(dtype):
        return len(columns)
    path, number, _ = groups.place(0)
    first = read_group(path, number, columns).column(0)[0].as_py()
    if not first:
        raise DataError(f"{path}: row 0: {columns[0]} is {first}; expected a list of numbers")
    return len(first)
