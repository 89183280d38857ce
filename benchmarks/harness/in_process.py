"""A training in this process, which must be in a process group; neither Ray nor MLflow takes part."""

from collections.abc import Mapping
from functools import cache

import torch
from pydantic import TypeAdapter

from taugrad.platform.data import Data
from taugrad.platform.data import load as load_data
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.data import DataConfig
from taugrad.platform.training.reporting import Listener
from taugrad.platform.training.trainer import Trainer


class Following(Listener):
    """A silent listener that knows the trainer, and keeps what it reports.

    Attributes:
        trainer: the trainer.
        last: the last evaluation.
        logged: the metrics of every iteration that has some.
    """

    trainer: Trainer

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self.logged: list[dict[str, float]] = []

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append(dict(metrics))

    def series(self, name: str) -> list[float]:
        """A metric over the iterations that have it."""
        return [metrics[name] for metrics in self.logged if name in metrics]

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.last = dict(metrics)


def trained(spec: RunSpec | str) -> Following:
    """A spec, or its JSON, is trained to its end."""
    listener = Following()
    fit(spec, listener)
    return listener


def fit(spec: RunSpec | str, listener: Following) -> Trainer:
    """Trains a spec, or its JSON, to its end; the listener is given the trainer first."""
    spec = RunSpec.model_validate_json(spec) if isinstance(spec, str) else spec
    device = torch.device(spec.workers.device)
    listener.trainer = Trainer(spec, _data(spec.data.model_dump_json()), device, listener)
    listener.trainer.fit()
    return listener.trainer


@cache
def _data(config: str) -> Data:
    """Reading the digits takes seconds, in every process."""
    return load_data(TypeAdapter(DataConfig).validate_json(config))
