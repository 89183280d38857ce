"""What benchmarks/auto_threshold.py trains: models x data sets, and the searches of tau for them.

A pair's reference is a search in its own setting; what the law is fitted to are searches in several.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METHOD = "strom({tau}, nonfinite='skip') | golomb_rice"
"""The rule and codec that every threshold is tried in. A step that is not finite is left out: a training that
diverges shall count as one that learned little, and not end the others."""
TAU_RANGE = {"log": [1e-4, 10.0]}
SIMULATED = {"mode": "simulated"}
"""Two workers in one process: the same bits in less time."""


@dataclass(frozen=True)
class Pair:
    """A model and the data that it learns."""

    model: str
    data: str
    fields: Mapping[str, Any]
    """Of the spec."""
    variants: tuple[Mapping[str, Any], ...] = ()
    """Further settings in which the best tau is looked for: dotted fields of the spec."""

    @property
    def name(self) -> str:
        """For people, files and MLflow."""
        return f"{self.model}-{self.data}"

    def tree(self, compressor: str, **more: Any) -> dict[str, Any]:
        """A spec with a compressor's line."""
        return {**self.fields, "sync": SIMULATED, "compressor": compressor, **more}


_MODELS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "mlp": ({"kind": "mlp", "widths": [64]}, {"digits": 0.05, "mnist5k": 0.02}),
    "tanh": (
        {"kind": "mlp", "widths": [392, 50], "activation": "tanh"},
        {"digits": 0.05, "mnist5k": 0.02},
    ),
    "lenet": ({"kind": "lenet"}, {"digits": 0.01, "mnist5k": 0.01}),
}
"""With each data set's learning rate, at which the model learns well without compression."""
_EPOCHS = {"digits": 10, "mnist5k": 4}
_CHEAP = {("mlp", "digits"), ("tanh", "digits"), ("lenet", "digits")}
"""Pairs that take seconds a training, and can be looked at in more settings."""


def _pair(model: str, data: str) -> Pair:
    config, rates = _MODELS[model]
    training = {"epochs": _EPOCHS[data], "optimizer": {"kind": "sgd", "lr": rates[data]}}
    fields = {"data": {"kind": data}, "model": config, "training": training}
    variants = (
        {"training.batch_size": 32},
        {"training.batch_size": 128},
        {"training.optimizer.lr": rates[data] / 2},
        {"workers.count": 4},
    )
    return Pair(model, data, fields, variants if (model, data) in _CHEAP else ())


PAIRS = tuple(_pair(model, data) for data in _EPOCHS for model in _MODELS)


@dataclass(frozen=True)
class Searched:
    """A search of tau for a pair in one setting."""

    pair: Pair
    setting: Mapping[str, Any]
    """Empty: the pair's own, which is the reference."""
    trials: int

    @property
    def name(self) -> str:
        """Of the search and its file."""
        changed = [f"{field.rpartition('.')[2]}-{value:g}" for field, value in self.setting.items()]
        return "-".join([self.pair.name, *changed])

    def tree(self) -> dict[str, Any]:
        """As `taugrad search` reads it from a file."""
        method = {"kind": "strom", "tau": TAU_RANGE, "codec": "golomb_rice", "nonfinite": "skip"}
        search = {"name": self.name, "objective": "front", "trials": self.trials}
        return {
            **self.pair.fields,
            **{"sync": SIMULATED, "experiment": experiment(self.pair)},
            **{"compressor": method, "search": search},
        }

    def overrides(self) -> list[str]:
        """The setting, as `taugrad search` takes it on its command line."""
        return [word for field, value in self.setting.items() for word in (f"--{field}", str(value))]


def experiment(pair: Pair) -> str:
    """The MLflow experiment of a pair's searches."""
    return f"tau-{pair.name}"


def searches(pairs: tuple[Pair, ...], trials: int, fewer: int) -> list[Searched]:
    """All searches: a pair's reference with so many trials, and its other settings with fewer."""
    own = [Searched(pair, {}, trials) for pair in pairs]
    return own + [Searched(pair, setting, fewer) for pair in pairs for setting in pair.variants]
