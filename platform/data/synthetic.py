"""Data made from a seed: Gaussian classes around random prototypes."""

import numpy as np
import torch
from numpy.typing import NDArray

from .config import Synthetic
from .dataset import DataSet


def synthetic(config: Synthetic) -> DataSet:
    """Draws a prototype of unit variance for each class, and examples with noise around it.

    Prototypes, training part and test part have a random stream each: another number of training examples
    leaves the prototypes and the test part as they are. The classes are of equal size, to one example.

    Args:
        config: Sizes, noise and seed.

    Returns:
        The data set; the same config always gives the same one.

    Raises:
        DataError: The noise is too large for float32.
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
