"""Loads a data set from its config."""

from collections.abc import Callable, Mapping
from typing import Any

from ..config import Config
from ..user_code import UserCodeError, call, import_object
from .cifar import load_cifar10, load_cifar100
from .config import (
    Cifar10,
    Cifar100,
    CustomData,
    DataConfig,
    Digits,
    Frames,
    ImageFolder,
    Mnist,
    Mnist5k,
    Parquet,
    Synthetic,
    Text,
    Tokens,
)
from .dataset import DataSet
from .embedded import digits, mnist5k, synthetic
from .examples import Data, Parts
from .frames import load_frames
from .idx import load_idx_folder
from .image_folder import load_image_folder
from .placing import placed
from .text import load_text
from .tokens import load_tokens


def load(config: DataConfig) -> Data:
    """Reads, splits or makes the data that a config describes.

    Args:
        config: Any of the data configs.

    Returns:
        The data set; the same config and files always give the same one, on every worker.

    Raises:
        DataError: The data are missing, damaged or not valid.
        UserCodeError: A custom factory cannot be found or called, raised, or returned no data set.
    """
    return _READERS[type(config)](placed(config))


_CONTRACT = (
    "a data set's factory takes what data.arguments holds and returns a taugrad.platform.data.DataSet "
    "or Parts"
)


def _parquet(config: Parquet) -> Data:
    from .parquet import load_parquet  # noqa: PLC0415 - pyarrow takes half a second

    return load_parquet(config)


def _custom(config: CustomData) -> Data:
    made = call(config.factory, import_object(config.factory), config.arguments, _CONTRACT)
    if not isinstance(made, DataSet | Parts):
        raise UserCodeError(config.factory, f"it returned a {type(made).__name__}; {_CONTRACT}")
    return made


_READERS: Mapping[type[Config], Callable[[Any], Data]] = {
    Mnist5k: mnist5k,
    Digits: digits,
    Mnist: lambda config: load_idx_folder(config.path),
    Synthetic: synthetic,
    Text: load_text,
    Tokens: load_tokens,
    Cifar10: load_cifar10,
    Cifar100: load_cifar100,
    Frames: load_frames,
    ImageFolder: load_image_folder,
    Parquet: _parquet,
    CustomData: _custom,
}
