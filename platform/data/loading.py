"""From a config to a data set."""

from typing import assert_never

from ..importing import import_object
from .config import CustomData, DataConfig, Digits, Mnist, Mnist5k, Synthetic
from .dataset import DataError, DataSet
from .embedded import digits, mnist5k
from .idx import load_idx_folder
from .synthetic import synthetic


def load(config: DataConfig) -> DataSet:
    """Reads, splits or makes the data that a config describes.

    Args:
        config: Any of the data configs.

    Returns:
        The data set; the same config and files always give the same one, on every worker.

    Raises:
        DataError: The data are missing, damaged or not valid, or a custom factory returned something else.
        ImportPathError: A custom factory cannot be found.
    """
    match config:
        case Mnist5k():
            return mnist5k(config)
        case Digits():
            return digits(config)
        case Mnist():
            return load_idx_folder(config.path)
        case Synthetic():
            return synthetic(config)
        case CustomData():
            return _custom(config)
        case _:
            assert_never(config)


def _custom(config: CustomData) -> DataSet:
    made = import_object(config.factory)(**config.arguments)
    if not isinstance(made, DataSet):
        raise DataError(
            f"{config.factory} returned a {type(made).__name__}; "
            "it must return a taugrad.platform.data.DataSet"
        )
    return made
