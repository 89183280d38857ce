"""Logarithms of settings as metrics: MLflow's scatter and parallel charts have no logarithmic axis."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_LEAST_SPAN = 10.0  # a setting whose values span less than this is read as well on a linear axis


def log_metric(param: str) -> str:
    """The metric that holds the decimal logarithm of a param."""
    return f"view/{param}_log10"


def write_logarithms(client: "MlflowClient", runs: "Sequence[Run]", params: Iterable[str]) -> set[str]:
    """Gives runs the logarithms of settings that span more than a power of ten, where they lack them.

    Args:
        client: The tracking store.
        runs: Those to be compared.
        params: The settings in question.

    Returns:
        The names of the metrics.
    """
    written = set()
    for param in params:
        values = [
            (run, value) for run in runs if (value := _positive(run.data.params.get(param))) is not None
        ]
        if not values or max(v for _, v in values) < _LEAST_SPAN * min(v for _, v in values):
            continue
        written.add(log_metric(param))
        for run, value in values:
            if log_metric(param) not in run.data.metrics:
                client.log_metric(run.info.run_id, log_metric(param), math.log10(value))
    return written


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
