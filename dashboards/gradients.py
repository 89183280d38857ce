"""Figures of gradients: their sizes, layer by layer, and how many elements are not sent."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import LayerQuantity, layer_metric

from . import style
from .histories import History, bucket_medians, thinned
from .labelling import Label, label_ends, shortened
from .palette import GREY, rule_style
from .runs import RunHistory

MOST_LAYERS = 12
"""Layers in a figure; of more, the first, the last, and evenly spaced ones between are drawn."""

PERCENTILES: tuple[tuple[LayerQuantity, str, str], ...] = (
    ("grad_p50", "50%", "#9ECAE1"),
    ("grad_p90", "90%", "#4A98C9"),
    ("grad_p99", "99%", "#1764AB"),
    ("grad_p999", "99.9%", "#08306B"),
)
"""What is drawn, its label, its colour."""

_TAU = "#D55E00"
_FEW_ZEROS = 0.001  # layers that never have more share a label
_MEDIANS = 60  # points of a smoothed line


def layers_of(run: RunHistory) -> list[str]:
    """The run's layers, in the order of their names; a part of them where there are many."""
    layers = sorted(
        {
            name.removeprefix("layer/").rpartition("/")[0]
            for name in run.finals
            if name.startswith("layer/") and name.endswith("/grad_p50")
        }
    )
    if len(layers) <= MOST_LAYERS:
        return layers
    return [layers[round(i)] for i in np.linspace(0, len(layers) - 1, MOST_LAYERS)]


def layer_metrics(run: RunHistory) -> list[str]:
    """The metrics whose histories these figures need."""
    quantities: list[LayerQuantity] = [*(quantity for quantity, _, _ in PERCENTILES), "tau", "zeros"]
    return [layer_metric(layer, quantity) for layer in layers_of(run) for quantity in quantities]


def gradient_percentiles(run: RunHistory, page: style.Page = style.WIDE) -> Figure:
    """Percentiles of gradient magnitudes over time, and the threshold, one panel a layer.

    Raises ValueError if the run has no histories of `layer_metrics`.
    """
    layers = [layer for layer in layers_of(run) if layer_metric(layer, "grad_p50") in run.metrics]
    if not layers:
        raise ValueError(f"run {run.name} has no gradient percentiles")
    figure, panels = style.new_panels(
        f"How large gradients are in each layer, {run.name}",
        "magnitudes that this share of a layer's elements does not exceed, before compression"
        "; dashed: the threshold tau",
        "iteration",
        "magnitude of gradient elements (logarithmic)",
        [(name, "black") for name in _without_common(layers)],
        replace(page, columns=2) if page.is_narrow else page,
        key=[*(style.Key(text, color) for _, text, color in PERCENTILES), style.Key("tau", _TAU)],
    )
    drawn = [run.metrics[layer_metric(layer, quantity)] for layer in layers for quantity, _, _ in PERCENTILES]
    taus = [run.metrics[name] for layer in layers if (name := layer_metric(layer, "tau")) in run.metrics]
    positive = np.concatenate([values[values > 0] for _, values in (*drawn, *taus)])
    low, high = float(np.percentile(positive, 2)), float(positive.max())
    style.log_axis(panels[0].yaxis, low / 2, max(high * 2, low * 4), "", most=5)
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.power(value)))
    style.iterations(panels[0], [steps for steps, _ in drawn])
    for axes, layer in zip(panels, layers, strict=True):
        for quantity, _, color in PERCENTILES:
            steps, values = thinned(run.metrics[layer_metric(layer, quantity)])
            axes.plot(steps, np.where(values > 0, values, np.nan), color=color, linewidth=1.1)
        tau = run.metrics.get(layer_metric(layer, "tau"))
        if tau is not None:
            axes.plot(*thinned(tau), color=_TAU, linewidth=1.2, linestyle="--")
    return figure


def zeros_by_layer(run: RunHistory, page: style.Page = style.WIDE) -> Figure:
    """Percentage of each layer's gradient that is exactly zero, over time.

    Raises ValueError if the run has no histories of `layer_metrics`.
    """
    zeros = {
        layer: run.metrics[name]
        for layer in layers_of(run)
        if (name := layer_metric(layer, "zeros")) in run.metrics
    }
    if not zeros:
        raise ValueError(f"run {run.name} has no percentage of zeros")
    figure, axes = style.new_figure(
        f"How much of each layer's gradient is exactly zero, {run.name}",
        "one worker's gradient, before compression",
        "iteration",
        "elements that are exactly zero, %",
        page,
    )
    style.iterations(axes, [steps for steps, _ in zeros.values()])
    _percent_axis(axes, max(float(np.nanmax(values)) for _, values in zeros.values()))
    longest = 14 if page.is_narrow else 30
    labels, without = [], [layer for layer, (_, values) in zeros.items() if np.nanmax(values) < _FEW_ZEROS]
    for i, (layer, name, history) in enumerate(
        zip(zeros, _without_common(list(zeros)), zeros.values(), strict=True)
    ):
        steps, values = thinned(history)
        color = _shade(i, len(zeros))
        axes.plot(steps, 100 * values, color=color, linewidth=1.3)
        if layer not in without or len(without) == 1:
            labels.append(Label(float(steps[-1]), 100 * float(values[-1]), shortened(name, longest), color))
    if len(without) > 1:
        text = f"{len(without)} of {len(zeros)} layers:\nbelow {100 * _FEW_ZEROS:g}% throughout"
        labels.append(Label(axes.get_xlim()[1], 0.0, text, GREY))
    label_ends(axes, labels)
    return figure


def kept_back(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """Percentage of elements below the threshold in the first epoch (Rae's figure 2), smoothed.

    The history of `epoch` tells where the first epoch ends. Raises ValueError if no sparse run has a history
    of `comm/fraction`.
    """
    drawn = [run for run in runs if names.COMM_FRACTION in run.metrics and _is_sparse(run)]
    if not drawn:
        raise ValueError(f"no run that leaves elements out has a history of {names.COMM_FRACTION}")
    figure, axes = style.new_figure(
        "How much of the gradient counts as zero in the first epoch",
        "elements not sent by a worker, as residual + gradient is below the threshold; running medians",
        "iteration of the first epoch",
        "elements not sent, %",
        page,
    )
    histories = [_first_epoch(run) for run in drawn]
    style.iterations(axes, [steps for steps, _ in histories])
    _percent_axis(axes, 1.0)
    labels = []
    for run, history in zip(drawn, histories, strict=True):
        steps, values = bucket_medians(history, _MEDIANS)
        color = rule_style(run.rule).color
        axes.plot(steps, 100 * (1 - values), color=color, linewidth=1.5)
        labels.append(Label(float(steps[-1]), 100 * (1 - float(values[-1])), run.name, color))
    axes.axhline(0.0, color=GREY, linewidth=1.2, linestyle="--")
    labels.append(Label(axes.get_xlim()[1], 0.0, "no compression", GREY))
    label_ends(axes, labels)
    return figure


def _without_common(layers: Sequence[str]) -> list[str]:
    """Names of layers without the parts between dots that all of them begin or end with."""
    parts = [layer.split(".") for layer in layers]
    shortest = min(map(len, parts))
    front = 0
    while front < shortest - 1 and len({each[front] for each in parts}) == 1:
        front += 1
    back = 0
    while back < shortest - 1 - front and len({each[-1 - back] for each in parts}) == 1:
        back += 1
    return [".".join(each[front : len(each) - back]) for each in parts]


def _first_epoch(run: RunHistory) -> History:
    steps, values = run.metrics[names.COMM_FRACTION]
    if names.EPOCH not in run.metrics:
        return steps, values
    end_steps, epochs = run.metrics[names.EPOCH]
    if not (epochs >= 1).any():
        return steps, values
    inside = steps <= end_steps[np.argmax(epochs >= 1)]
    return (steps[inside], values[inside]) if inside.any() else (steps, values)


def _is_sparse(run: RunHistory) -> bool:
    return bool((run.metrics[names.COMM_FRACTION][1] < 1).any())


def _percent_axis(axes: Axes, highest: float) -> None:
    top = 102 if highest > 0.5 else max(1.0, 120 * highest)
    axes.set_ylim(-0.02 * top, top)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))


def _shade(i: int, count: int) -> str:
    """Colours of layers, from the first, light, to the last, dark; none is a rule's."""
    shades: NDArray[np.float64] = np.linspace(0.75, 0.15, max(count, 2))
    level = math.floor(255 * shades[i])
    return f"#{level // 2:02x}{level:02x}{min(255, level + 40):02x}"
