"""Loads a data set from its config."""

from importlib import import_module

from ..spec.data import CustomData, DataConfig
from ..user_code import UserCodeError, call, import_object
from .dataset import Data

_READERS = {
    "mnist5k": "embedded:mnist5k",
    "digits": "embedded:digits",
    "synthetic": "embedded:synthetic",
    "mnist": "idx:load_mnist",
    "text": "text:load_text",
    "tokens": "tokens:load_tokens",
    "cifar10": "cifar:load_cifar",
    "cifar100": "cifar:load_cifar",
    "frames": "frames:load_frames",
    "image_folder": "image_folder:load_image_folder",
    "parquet": "parquet:load_parquet",
}
"""By kind the function, in a module beside this one, that makes a `Data` of the config."""
_CONTRACT = (
    "a data set's factory takes what data.arguments holds and returns a taugrad.platform.data.DataSet "
    "or Parts"
)


def load(config: DataConfig) -> Data:
    """Reads, splits or makes the data that a config describes, the same on every worker.

    Raises DataError: the data are missing, damaged or not valid; UserCodeError: a custom factory cannot be
    found or called, raised, or returned no data set.
    """
    if isinstance(config, CustomData):
        made = call(config.factory, import_object(config.factory), config.arguments, _CONTRACT)
        if not isinstance(made, Data):
            raise UserCodeError(config.factory, f"it returned a {type(made).__name__}; {_CONTRACT}")
        return made
    module, _, name = _READERS[config.kind].partition(":")
    data: Data = getattr(import_module(f"{__package__}.{module}"), name)(config)
    return data
