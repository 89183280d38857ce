"""Captions of figures, made from the data: they say what the drawn runs did, in numbers."""

from collections.abc import Callable, Sequence

import numpy as np

from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric

from . import style
from .gradients import layers_of
from .groups import Group, baseline
from .runs import History, RunHistory

_PART = 0.1  # of a run's iterations, at its beginning and at its end, whose medians tell the trend
_FEWEST = 10  # values, from which there is a trend to tell
_FLAT = 1.1  # a change by less than this factor is none
_MOST = 6  # runs that a caption names


def sent(runs: Sequence[RunHistory]) -> str:
    """How the share that is sent changed, run by run."""
    return _trends(
        [(run.name, run.metrics[names.COMM_FRACTION]) for run in runs if names.COMM_FRACTION in run.metrics],
        "Medians of the first and the last tenth of the iterations",
        lambda value: f"{style.decimal(float(f'{100 * value:.2g}'))}%",
    )


def gradients(run: RunHistory) -> str:
    """How the gradients' sizes changed, layer by layer, and how to read the threshold's line."""
    found = [
        (layer, run.metrics[name])
        for layer in layers_of(run)
        if (name := layer_metric(layer, "grad_p99")) in run.metrics
    ]
    moved = _trends(
        found, "The 99% line, medians of its first and its last tenth", lambda value: f"{value:.2g}"
    )
    reading = (
        "Where the 99% line is above tau, at least 1% of the layer's elements exceed tau in this gradient "
        "alone, before the residual is added."
    )
    has_tau = any(layer_metric(layer, "tau") in run.metrics for layer, _ in found)
    return " ".join(part for part in (reading if has_tau else "", moved) if part)


def bits(runs: Sequence[RunHistory]) -> str:
    """Whether the wire carried more or fewer bits than the values have."""
    above: list[str] = []
    below: list[str] = []
    for run in runs:
        if run.is_baseline or not {names.EPOCH_BITS_PER_PARAM, names.EPOCH_VALUE_BITS_PER_PARAM} <= set(
            run.metrics
        ):
            continue
        wire, values = (
            float(run.metrics[name][1].sum())
            for name in (names.EPOCH_BITS_PER_PARAM, names.EPOCH_VALUE_BITS_PER_PARAM)
        )
        if values > 0:
            (above if wire > values else below).append(
                f"{run.name} ({style.decimal(float(f'{wire / values:.2g}'))} times)"
            )
    parts = []
    if above:
        parts.append(
            f"More on the wire than in the values, for positions, headers and tables: {_some(above)}."
        )
    if below:
        parts.append(f"No more on the wire than in the values: {_some(below)}.")
    return " ".join(parts)


def kept(runs: Sequence[RunHistory]) -> str:
    """What happened to elements that were not sent."""
    fading = [
        f"{run.name} ({decay})"
        for run in runs
        if not run.is_baseline and (decay := run.params.get("compressor.decay", "1.0")) != "1.0"
    ]
    said = "What is not sent is kept and added to the next gradient: nothing is lost"
    return (
        f"{said}, but for what these let fade (the share that stays): {_some(fading)}."
        if fading
        else f"{said}."
    )


def seconds(groups: Sequence[Group]) -> str:
    """How long training took against the runs without compression, on the machine that trained."""
    plain = (
        "Times are from the machine that trained. A figure below shows how long messages take on a slower "
        "network."
    )
    reference = baseline(groups)
    whole = reference.estimate(names.TOTAL_SECONDS) if reference else None
    if whole is None or whole.mean <= 0:
        return plain
    ratios = [
        each.mean / whole.mean
        for group in groups
        if not group.is_baseline and group.tau and (each := group.estimate(names.TOTAL_SECONDS)) is not None
    ]
    if not ratios:
        return plain
    low, high = (style.decimal(float(f"{end:.2g}")) for end in (min(ratios), max(ratios)))
    took = f"{low} times" if low == high else f"{low} to {high} times"
    return (
        f"On the machine that trained, whole runs took {took} as long as without compression, the first "
        "steps included. A figure below shows how long messages take on a slower network."
    )


def _trends(found: Sequence[tuple[str, History]], what: str, write: Callable[[float], str]) -> str:
    """`what: name 10% to 2% (down), ...`; empty where nothing is long enough."""
    told = []
    for name, (_, values) in found:
        there = values[np.isfinite(values)]
        if len(there) < _FEWEST:
            continue
        part = max(1, round(_PART * len(there)))
        first, last = float(np.median(there[:part])), float(np.median(there[-part:]))
        told.append(f"{name} {write(first)} to {write(last)} ({_direction(first, last)})")
    return f"{what}: {_some(told)}." if told else ""


def _direction(first: float, last: float) -> str:
    if max(first, last) <= _FLAT * min(first, last):
        return "flat"
    return "up" if last > first else "down"


def _some(told: Sequence[str]) -> str:
    more = len(told) - _MOST
    return ", ".join(told[:_MOST]) + (f" and {more} more" if more > 0 else "")
