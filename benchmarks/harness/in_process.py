"""A training in this process, which `trainings.Trainings` started; neither Ray nor MLflow takes part."""

from functools import cache

import torch
from pydantic import TypeAdapter

from taugrad.platform.data import Data
from taugrad.platform.data import load as load_data
from taugrad.platform.data.config import DataConfig
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.trainer import Trainer

from .sync_runs import Silent


class Following(Silent):
    """A listener that knows the trainer."""

    trainer: Trainer


def fit(text: str, listener: Silent) -> Trainer:
    """Trains a spec, given as JSON, to its end.

    Args:
        text: the spec; this process must be in a process group.
        listener: told what happens; a `Following` one is given the trainer first.
    """
    spec = RunSpec.model_validate_json(text)
    trainer = Trainer(spec, _data(spec.data.model_dump_json()), torch.device("cpu"), listener)
    if isinstance(listener, Following):
        listener.trainer = trainer
    trainer.fit()
    return trainer


@cache
def _data(config: str) -> Data:
    return load_data(TypeAdapter(DataConfig).validate_json(config))
