"""CIFAR-10 and CIFAR-100, the binary version.

A file is records, one after the other: one label byte (CIFAR-100: two, the coarse class and the fine one),
then 1,024 bytes of red, 1,024 of green and 1,024 of blue, row by row. The Python version holds pickles, which
can run any code when they are read; it is not read.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..spec.data import Cifar10, Cifar100
from .errors import DataError, reading
from .examples import Parts
from .pixels import Normalization, Pixels
from .shape import Shape

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_TEN = [f"data_batch_{number}.bin" for number in range(1, 6)]

Records = NDArray[np.uint8]
"""[N, labels + 3072]"""


def load_cifar(config: Cifar10 | Cifar100) -> Parts:
    """Reads CIFAR's files: images 3 x 32 x 32 in 10, 20 or 100 classes, normalised by channel.

    Raises DataError: a file is missing, not whole, or holds a label that is none.
    """
    train_names, test_names, classes, use = _TEN, ["test_batch.bin"], [10], 0
    if isinstance(config, Cifar100):  # whose records have a coarse label and a fine one
        train_names, test_names, classes = ["train.bin"], ["test.bin"], [20, 100]
        use = 0 if config.labels == "coarse" else 1
    digest = hashlib.sha256()
    train, test = (
        np.concatenate([_records(config.path / name, classes, digest) for name in names])
        for names in (train_names, test_names)
    )
    images = [batch[:, len(classes) :].reshape(-1, 3, _SIDE, _SIDE) for batch in (train, test)]
    labels = [batch[:, use].copy() for batch in (train, test)]
    normalize = Normalization.of(images[0], str(config.path))
    return Parts(
        Pixels(images[0], labels[0], normalize, augment=config.augment),
        Pixels(images[1], labels[1], normalize, augment=False),
        Shape.image(3, _SIDE, _SIDE, classes[use]),
        digest.hexdigest(),
    )


def _records(path: Path, classes: Sequence[int], digest: "hashlib._Hash") -> Records:
    length = len(classes) + _PIXELS
    with reading(path, "expected a file of CIFAR's binary version"):
        data = path.read_bytes()
    if len(data) % length or not data:
        raise DataError(
            f"{path}: holds {len(data)} bytes; expected a multiple of {length}, but the record at offset "
            f"{len(data) // length * length} has {len(data) % length}"
        )
    digest.update(data)
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    for column, count in enumerate(classes):
        wrong = np.flatnonzero(records[:, column] >= count)
        if len(wrong):
            at = int(wrong[0])
            raise DataError(
                f"{path}: label {records[at, column]} at offset {at * length + column} (image {at}); "
                f"every one must be in 0..{count - 1}"
            )
    return records
