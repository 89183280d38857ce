"""Fits a law: a ridge regression from logarithms of the first iteration's gradients to the best value."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from taugrad.compressors.method.policies import Law, LawTau
from taugrad.compressors.method.quantizers import LawFloor
from taugrad.platform.config import Config
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.yaml_file import dump_yaml, parse_yaml

from ..momentum import momentum_correction
from ..tables import rounded
from .past import BATCH, OPTIMIZER, RATE, WORKERS, PastSetting

SHIPPED = Path(__file__).parent / "strom.yaml"
"""The law that comes with taugrad: for strom, by the searches of benchmarks/choose/auto_threshold.py."""
_DIGITS = 4
"""Significant digits of a law."""
FEWEST = 3
"""Settings that a law needs at least."""
_PENALTIES = np.geomspace(0.01, 1000, 26)
TOLERANCES = (2.0, 4.0, 8.0, 16.0)
"""Percentage points of accuracy, at which settings have best values. Below the first, a single training
depends more on chance than on tau; the relation is extrapolated to LEAST_TOLERANCE and MOST_TOLERANCE."""
LEAST_TOLERANCE, MOST_TOLERANCE = 0.1, 32.0
_CIRCUMSTANCES = ("tolerance", "batch", "lr", "workers")
_SEEN = ("rms", "p99", "p999", "layer")
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Kind = Literal["wgt", "bgt", "qgt", "strom", "entropy"]
"""Methods with a tau, or a floor, that a law can give."""
_FROM = {"batch": BATCH, "lr": RATE, "workers": WORKERS}


WIDTH_TAU = math.log(1.5)
"""Runs whose taus differ by this factor are still averaged, because a single accuracy is half chance."""
WIDTH_FLOOR = 0.5
"""The same for floors, in bits."""


class LawError(ValueError):
    """No law can be fitted to these runs; the message says why."""


class FittedLaw(Config):
    """value = constant + sum of weights x natural logarithms; for a tau the value is ln(tau).

    With momentum in the compressor, it is ln(tau x (1 - momentum)): momentum makes a steady gradient
    1 / (1 - momentum) times as large, and a tau that is larger by this factor loses the same accuracy.
    """

    kind: Kind
    """The method that it was fitted for."""
    looked_for: Literal["tau", "floor"]
    constant: _Finite
    weights: dict[str, _Finite]
    """Of rms, p99, p999 and layer, see `tau.by_law.Features`, of tolerance (points of accuracy that
    may be lost, 0.1 to 32), and of batch, lr and workers."""
    optimizers: tuple[str, ...] = Field(min_length=1)
    """Kinds that the runs had: a threshold that is right for one is not for another."""
    momentum_in: Literal["optimizer", "compressor"] = "optimizer"
    """Where momentum was in the runs."""
    error: float = Field(ge=0, allow_inf_nan=False)
    """Root mean square of cross-validation errors, leaving out models and data sets, or settings if there is
    only one; in bits for a floor, of logarithms for a tau."""
    settings: int = Field(ge=1)
    """The number of settings that it was fitted to."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        wanted = (*_SEEN, *_CIRCUMSTANCES)
        if self.weights.keys() != set(wanted):
            raise ValueError(f"weights of {', '.join(self.weights)}: must be those of {', '.join(wanted)}")
        if self.looked_for != _looked_for(self.kind):
            raise ValueError(
                f"looked_for = {self.looked_for}: for {self.kind} it must be {_looked_for(self.kind)}"
            )
        if self.looked_for == "floor" and self.momentum_in == "compressor":
            raise ValueError(f"momentum_in = compressor: {self.kind} has no momentum of its own")
        return self

    def of(self, spec: RunSpec, tolerance: float) -> Law:
        """The law for a run, whose momentum is in `momentum_in`, and a tolerance in points of accuracy."""
        known = {
            "tolerance": min(max(tolerance, LEAST_TOLERANCE), MOST_TOLERANCE),
            "batch": float(spec.training.batch_size),
            "lr": float(spec.training.optimizer.lr),
            "workers": float(spec.workers.count),
        }
        constant = self.constant + sum(self.weights[name] * math.log(known[name]) for name in _CIRCUMSTANCES)
        constant -= math.log1p(-momentum_correction(spec.compressor))
        make = LawTau if self.looked_for == "tau" else LawFloor
        weights = {name: rounded(self.weights[name], _DIGITS) for name in _SEEN}
        return make(constant=rounded(constant, _DIGITS), **weights)

    def describe(self) -> str:
        """The relation on one line."""
        terms = [f"{self.constant:.3g}"]
        terms += [f"{weight:+.3g} ln({name})" for name, weight in self.weights.items() if weight]
        tau = "ln(tau)" if self.momentum_in == "optimizer" else "ln(tau (1 - momentum))"
        left = tau if self.looked_for == "tau" else "floor"
        return f"{left} = {' '.join(terms)}"


@dataclass(frozen=True)
class Example:
    """A setting with its best value at a tolerance."""

    setting: PastSetting
    tolerance: float
    best: float
    missed: float = math.nan
    """The cross-validation error, on the law's scale."""


def fit(kind: Kind, examples: Sequence[Example]) -> tuple[FittedLaw, list[Example]]:
    """Fits a law to a method's examples with features; returns it, and the examples with their errors.

    Raises:
        LawError: there are too few, or momentum is in the optimizer and in the compressor.
    """
    settings = len({id(example.setting) for example in examples})
    if settings < FEWEST:
        have = "1 setting has" if settings == 1 else f"{settings} settings have"
        raise LawError(f"{have} a best value, and a law needs at least {FEWEST}")
    looked_for = _looked_for(kind)
    names, inputs = _inputs(examples)
    momentum_in = _whose_momentum(examples)
    best = np.array([example.best for example in examples])
    steady = np.array([1 - example.setting.momentum_correction for example in examples])
    targets = best if looked_for == "floor" else np.log(best * steady)
    groups: list[str | int] = [example.setting.family for example in examples]
    if len(set(groups)) == 1:
        groups = [id(example.setting) for example in examples]
    model, predicted = _regression(inputs, targets, groups)
    scaler, ridge = model[0], model[-1]
    slopes = ridge.coef_ / scaler.scale_
    weights = dict(zip(names, slopes.tolist(), strict=True))
    missed = predicted - targets
    law = FittedLaw(
        kind=kind,
        looked_for=looked_for,
        constant=float(ridge.intercept_ - slopes @ scaler.mean_),
        weights={name: rounded(weight, _DIGITS) for name, weight in weights.items()},
        optimizers=tuple(sorted({example.setting.params.get(OPTIMIZER, "sgd") for example in examples})),
        momentum_in=momentum_in,
        error=float(np.sqrt(np.mean(missed**2))),
        settings=settings,
    )
    judged = [replace(example, missed=float(miss)) for example, miss in zip(examples, missed, strict=True)]
    return law, judged


def _whose_momentum(examples: Sequence[Example]) -> Literal["optimizer", "compressor"]:
    whose = {example.setting.momentum_in for example in examples}
    if whose >= {"optimizer", "compressor"}:
        raise LawError(
            "some runs have compressor.momentum and others training.optimizer.momentum: a law holds for one "
            "of the two; name experiments that have the same"
        )
    return "compressor" if "compressor" in whose else "optimizer"


def _looked_for(kind: Kind) -> Literal["tau", "floor"]:
    return "floor" if kind == "entropy" else "tau"


def _inputs(examples: Sequence[Example]) -> tuple[list[str], NDArray[np.float64]]:
    """Names of the inputs, and float64 [examples, inputs]."""
    rows = []
    for example in examples:
        features = example.setting.features
        assert features is not None
        known = {"tolerance": example.tolerance} | {
            name: example.setting.number(_FROM[name]) for name in _FROM
        }
        logarithms = [math.log(known[name]) for name in _CIRCUMSTANCES]
        rows.append([*(getattr(features, name) for name in _SEEN), *logarithms])
    return [*_SEEN, *_CIRCUMSTANCES], np.array(rows)


def _regression(
    inputs: NDArray[np.float64], targets: NDArray[np.float64], groups: Sequence[str | int]
) -> tuple[Any, NDArray[np.float64]]:
    """A ridge regression, and its predictions of each group when it is fitted to the others.

    The penalty minimizes the errors of these.
    """
    from sklearn.linear_model import Ridge  # noqa: PLC0415 - takes a second
    from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_predict  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    splits = list(LeaveOneGroupOut().split(inputs, targets, groups))
    search = GridSearchCV(
        make_pipeline(StandardScaler(), Ridge()),
        {"ridge__alpha": _PENALTIES},
        scoring="neg_mean_squared_error",
        cv=splits,
    ).fit(inputs, targets)
    predicted = cross_val_predict(search.best_estimator_, inputs, targets, cv=splits)
    return search.best_estimator_, predicted


def write_law(law: FittedLaw, path: Path, heading: str) -> None:
    """Writes a law as YAML, under a comment."""
    text = dump_yaml(law.model_dump(mode="json"))
    path.write_text(f"# {heading}\n{text}", encoding="utf-8")


def read_law(path: Path) -> FittedLaw:
    """Reads a law that `write_law` wrote.

    Raises:
        SpecError: the file is not there or holds no law.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), [FittedLaw])
        return FittedLaw.model_validate(tree)
    except OSError as error:
        raise SpecError(str(path), [f"cannot be read: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SpecError(str(path), ["does not contain a law: it is not valid YAML"]) from None
    except ValidationError as error:
        problems = [_problem(problem["loc"], problem["msg"]) for problem in error.errors()]
        raise SpecError(str(path), problems) from None


def _problem(where: tuple[int | str, ...], text: str) -> str:
    """A problem of a file: of a field, or of the whole."""
    field = ".".join(map(str, where)) or "does not contain a law"
    return f"{field}: {text.removeprefix('Value error, ')}"


def scale_of(kind: str) -> tuple[Callable[[float], float], float]:
    """The scale of a method's values, and the width of the smoothing of accuracies on it."""
    return ((lambda floor: floor), WIDTH_FLOOR) if kind == "entropy" else (math.log, WIDTH_TAU)


def best_value(setting: PastSetting, kind: str, tolerance: float) -> float | None:
    """The value of the run that sent least within a tolerance; None if all runs lost more.

    The tolerance is in percentage points of accuracy below the runs without compression, or if there are
    none, below the best of the setting.
    """
    scale, width = scale_of(kind)
    smooth = smoothed(
        [scale(run.value) for run in setting.runs], [run.outcome.value for run in setting.runs], width
    )
    reference = fmean(baseline.value for baseline in setting.baselines) if setting.baselines else max(smooth)
    allowed = reference - tolerance / 100
    within = [run for run, accuracy in zip(setting.runs, smooth, strict=True) if accuracy >= allowed]
    return min(within, key=lambda run: run.outcome.wire_bytes).value if within else None


def smoothed(places: Sequence[float], values: Sequence[float], width: float) -> list[float]:
    """Values smoothed by a Gaussian kernel of that standard deviation."""
    at = np.asarray(places)
    weights = np.exp(-0.5 * ((at[:, None] - at) / width) ** 2)
    means: list[float] = (weights @ np.asarray(values) / weights.sum(1)).tolist()
    return means
