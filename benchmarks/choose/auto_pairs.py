"""What choose/auto_threshold.py trains: models x data sets, and the searches of tau for them.

A pair's reference is a search.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taugrad.compressors.method import read_config
from taugrad.platform.spec import RunSpec
from taugrad.search.auto import DENSITIES
from taugrad.search.auto_specs import at_tolerance
from taugrad.search.momentum import in_compressor, momentum_correction

from ..harness.report import say

METHOD = "strom({tau}, nonfinite='skip') | golomb_rice"
"""The rule and codec that every threshold is tried in. A step that is not finite is left out: a training that
diverges shall count as one that learned little, and not end the others."""
CORRECTED = "strom({tau}, momentum=0.9, nonfinite='skip') | golomb_rice"
"""Momentum comes before the selection, not in the optimizer (Deep Gradient Compression, section 3.2)."""
TAU_RANGES = {METHOD: {"log": [1e-4, 10.0]}, CORRECTED: {"log": [1e-3, 100.0]}}
"""A steady gradient is ten times as large after momentum of 0.9 as before it."""
SIMULATED = {"mode": "simulated"}
"""Two workers in one process: the same bits in less time."""


@dataclass(frozen=True)
class Pair:
    """A model and the data that it learns."""

    model: str
    data: str
    fields: Mapping[str, Any]
    """Of the spec."""

    @property
    def name(self) -> str:
        """For people, files and MLflow."""
        return f"{self.model}-{self.data}"

    def tree(self, compressor: str, **more: Any) -> dict[str, Any]:
        """A spec with a compressor's line; where that has momentum, the optimizer has none."""
        tree = {**self.fields, "sync": SIMULATED, **more}
        method = read_config(compressor)
        if not momentum_correction(method):
            return {**tree, "compressor": compressor}
        moved = in_compressor(RunSpec.model_validate({**tree, "compressor": METHOD.format(tau=1)}))
        return {**tree, "training": moved["training"], "compressor": compressor}


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


def _pair(model: str, data: str) -> Pair:
    config, rates = _MODELS[model]
    training = {"epochs": _EPOCHS[data], "optimizer": {"kind": "sgd", "lr": rates[data]}}
    fields = {"data": {"kind": data}, "model": config, "training": training}
    return Pair(model, data, fields)


PAIRS = tuple(_pair(model, data) for data in _EPOCHS for model in _MODELS)


@dataclass(frozen=True)
class Searched:
    """A search of tau for a pair."""

    pair: Pair
    method: str
    """METHOD or CORRECTED."""
    trials: int

    @property
    def name(self) -> str:
        """Of the search and its file."""
        return self.pair.name + "-corrected" * (self.method == CORRECTED)

    @property
    def experiment(self) -> str:
        """The MLflow experiment of the search."""
        return experiment(self.pair, self.method)

    def tree(self) -> dict[str, Any]:
        """As `taugrad search` reads it from a file."""
        tree = self.pair.tree(self.method.format(tau=1), experiment=self.experiment)
        config = read_config(tree["compressor"])
        method = {"kind": config.kind, **config.model_dump(mode="json", exclude_defaults=True)}
        search = {"name": self.name, "objective": "front", "trials": self.trials}
        return {**tree, "compressor": {**method, "tau": TAU_RANGES[self.method]}, "search": search}


def experiment(pair: Pair, method: str) -> str:
    """The MLflow experiment of a pair's searches."""
    return f"{'corrected' if method == CORRECTED else 'tau'}-{pair.name}"


def searches(pairs: tuple[Pair, ...], trials: int) -> list[Searched]:
    """Two of each pair."""
    return [Searched(pair, method, trials) for method in TAU_RANGES for pair in pairs]


@dataclass(frozen=True)
class Entrant:
    """A way to a threshold."""

    name: str
    settings: tuple[str, ...]
    """Compressors' lines."""


DEFAULT = "taugrad auto"
"""By its tau for a tolerance, with momentum before the threshold."""
TOLERANCES = (0.5, 4.0, 32.0)
"""Points of accuracy that its three trainings may lose: the default of the command, then eight times that."""
RIVALS = ("DL4J", "SIDCo, strom", "SIDCo, wgt")


def entrants(pair: Pair) -> list[Entrant]:
    """All of them."""
    spec = RunSpec.model_validate(pair.tree(METHOD.format(tau=1)))
    given = tuple(str(at_tolerance(spec, tolerance).compressor) for tolerance in TOLERANCES)
    return [
        Entrant(DEFAULT, given),
        Entrant("allocate", tuple(_strom(f"allocate({d:g})") for d in (0.001, *DENSITIES))),
        Entrant("density", tuple(_strom(f"density({d:g})") for d in (0.001, *DENSITIES))),
        # Aji and Heafield's and SIDCo's evaluations use 10%, 1% and 0.1%; SIDCo fits in every iteration.
        Entrant("SIDCo, strom", tuple(_strom(f"sidco({d:g}, every=1)") for d in (0.001, 0.01, 0.1))),
        Entrant("SIDCo, wgt", tuple(_strom(f"sidco({d:g}, every=1)", "wgt") for d in (0.001, 0.01, 0.1))),
        # The adaptive rule's defaults, and the target sparsity's; both clip residuals.
        Entrant("DL4J", tuple(_dl4j(tau) for tau in ("dl4j", "dl4j(target=0.001)", "dl4j(target=0.01)"))),
    ]


def _strom(tau: str, rule: str = "strom") -> str:
    return METHOD.replace("strom", rule, 1).format(tau=tau if "(" in tau else f"{tau}()")


def _dl4j(tau: str) -> str:
    return _strom(tau).replace("nonfinite=", "clip=clip(5), nonfinite=", 1)


def run_searches(folder: Path, searches: Sequence[Searched]) -> None:
    """Runs searches in a folder, one after the other, or goes on with them; those that are done take seconds.

    Raises RuntimeError: a search failed; its output says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for i, search in enumerate(searches, start=1):
        if (folder / f"{search.name}.done").exists():
            continue
        say(f"search {i} of {len(searches)}: {search.name}, {search.trials} trials")
        spec = folder / f"{search.name}.yaml"
        spec.write_text(json.dumps(search.tree(), indent=2), encoding="utf-8")  # JSON is YAML
        output = folder / f"{search.name}.log"
        command = [sys.executable, "-m", "taugrad", "search", spec.name]
        with output.open("w", encoding="utf-8") as log:
            ended = subprocess.run(
                command, cwd=folder, env=environment(folder), stdout=log, stderr=log, check=False
            )
        if ended.returncode:
            raise RuntimeError(f"{search.name}: taugrad search failed, see {output}")
        (folder / f"{search.name}.done").touch()


def environment(folder: Path) -> dict[str, str]:
    """MLflow's database is in the folder, whatever the user's own is."""
    return {**os.environ, "MLFLOW_TRACKING_URI": tracking_uri(folder), "OMP_NUM_THREADS": "1"}


def tracking_uri(folder: Path) -> str:
    """Of the folder's MLflow database."""
    return f"sqlite:///{folder.resolve()}/mlflow.db"


def results_of(folder: Path, searched: Searched) -> Path:
    """The folder with a search's tables."""
    return folder / "taugrad-runs" / "searches" / searched.experiment / searched.name
