"""Captions of figures, with figures from the runs that are drawn."""

from collections.abc import Callable, Sequence

import numpy as np

from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric

from . import style
from .gradients import layers_of
from .histories import History
from .runs import RunHistory

_PART = 0.1  # of a run's iterations, at its beginning and at its end, whose medians give the trend
_FEWEST = 10  # values for a trend
_FLAT = 1.1  # a change by less than this factor is none
_MOST = 6  # runs that a caption names


def sent(runs: Sequence[RunHistory]) -> str:
    """The trend of the fraction that is sent, for each run."""
    return _trends(
        [(run.name, run.metrics[names.COMM_FRACTION]) for run in runs if names.COMM_FRACTION in run.metrics],
        "Medians of the first and the last tenth of the iterations",
        lambda value: f"{style.decimal(100 * value, 2)}%",
    )


def gradients(run: RunHistory) -> str:
    """The trend of each layer's gradient magnitudes, and how to read the threshold's line."""
    histories = [
        (layer, run.metrics[name])
        for layer in layers_of(run)
        if (name := layer_metric(layer, "grad_p99")) in run.metrics
    ]
    trends = _trends(
        histories, "The 99% line, medians of its first and its last tenth", lambda value: f"{value:.2g}"
    )
    reading = (
        "Where the 99% line is above tau, at least 1% of the layer's elements exceed tau in this gradient "
        "alone, before the residual is added."
    )
    has_tau = any(layer_metric(layer, "tau") in run.metrics for layer, _ in histories)
    return " ".join(part for part in (reading if has_tau else "", trends) if part)


def residuals(runs: Sequence[RunHistory]) -> str:
    """What becomes of elements that are not sent."""
    fading = [
        f"{run.name} ({decay})"
        for run in runs
        if not run.is_baseline and (decay := run.params.get("compressor.decay", "1.0")) != "1.0"
    ]
    rule = "What is not sent is kept and added to the next gradient: nothing is lost"
    return (
        f"{rule}, but for what these let fade (the share that stays): {_some(fading)}."
        if fading
        else f"{rule}."
    )


def _trends(histories: Sequence[tuple[str, History]], title: str, write: Callable[[float], str]) -> str:
    """`title: name 10% to 2% (down), ...`; empty if no history is long enough."""
    trends = []
    for name, (_, values) in histories:
        finite = values[np.isfinite(values)]
        if len(finite) < _FEWEST:
            continue
        part = max(1, round(_PART * len(finite)))
        first, last = float(np.median(finite[:part])), float(np.median(finite[-part:]))
        trends.append(f"{name} {write(first)} to {write(last)} ({_direction(first, last)})")
    return f"{title}: {_some(trends)}." if trends else ""


def _direction(first: float, last: float) -> str:
    if max(first, last) <= _FLAT * min(first, last):
        return "flat"
    return "up" if last > first else "down"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST
    return ", ".join(texts[:_MOST]) + (f" and {more} more" if more > 0 else "")
