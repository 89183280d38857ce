"""IDX, the format of MNIST's files.

A file is a magic number (two zero bytes, a type, the number of dimensions), each dimension as a big-endian
32-bit integer, and the elements. Only type 0x08, unsigned bytes, is read.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..spec.data import Mnist
from .dataset import DataSet
from .errors import DataError, reading

_UNSIGNED_BYTE = 0x08


def load_mnist(config: Mnist) -> DataSet:
    """Reads a folder with MNIST's four files, normalised by the training part.

    `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two `t10k-` files may be written with a dot
    (`train-images.idx3-ubyte`) and may end in `.gz`; the first of name, name.gz, dotted, dotted.gz is read.
    There are as many classes as the largest training label says. Raises DataError: a file is missing, damaged
    or does not fit its companion.
    """
    train_images, train_labels = _read_pair(config.path, "train")
    test_images, test_labels = _read_pair(config.path, "t10k")
    return DataSet.from_pixels(
        train_images, train_labels, test_images, test_labels, classes=int(train_labels.max()) + 1
    )


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Reads one file of so many dimensions, uint8; a name that ends in `.gz` is unpacked.

    Raises DataError: it cannot be read, is not such an IDX file, or holds fewer or more bytes than its header
    says.
    """
    try:
        with (
            reading(path, "expected an IDX file"),
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
        ):
            data = file.read()
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a complete gzip file ({error}); expected gzipped IDX") from error
    begin = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if data[:4] != magic:
        raise DataError(
            f"{path}: begins with 0x{data[:4].hex()}; expected 0x{magic.hex()}, "
            f"IDX with unsigned bytes, {dimensions}-dimensional"
        )
    if len(data) < begin:
        raise DataError(f"{path}: ends within its header, after {len(data)} bytes; expected {begin}")
    shape = struct.unpack(f">{dimensions}I", data[4:begin])
    elements = math.prod(shape)
    if len(data) - begin != elements:
        raise DataError(
            f"{path}: holds {len(data) - begin} bytes of data; "
            f"expected {elements} for {' x '.join(map(str, shape))}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=begin).reshape(shape)


def _read_pair(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images_path = _find(folder, f"{part}-images", "idx3-ubyte")
    labels_path = _find(folder, f"{part}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: holds {len(labels)} labels; expected {len(images)}, "
            f"as {images_path} holds that many images"
        )
    if images.size == 0:
        raise DataError(
            f"{images_path}: holds {' x '.join(map(str, images.shape))} pixels; expected at least one image"
        )
    return images, labels


def _find(folder: Path, name: str, kind: str) -> Path:
    spellings = [f"{name}{mark}{kind}{end}" for mark in "-." for end in ("", ".gz")]
    for spelling in spellings:
        if (folder / spelling).exists():
            return folder / spelling
    if not folder.is_dir():
        raise DataError(f"{folder}: is not a folder; expected one that holds {spellings[0]}")
    raise DataError(f"{folder / spellings[0]}: is missing; expected one of {', '.join(spellings)}")
