"""Interactive charts in one HTML file, which MLflow's UI shows inside a run: hover, zoom, hide."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric

from . import metric_labels
from .gradients import PERCENTILES, layers_of
from .histories import History, thinned
from .palette import rule_style
from .runs import RunHistory
from .timelines import METRICS as TIMES

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CURVES = (
    (names.COMM_FRACTION, "Elements sent by a worker", "%", 100.0, True),
    (names.COMM_WIRE_BYTES, "Wire bytes of an iteration, all workers", "kB", 1e-3, True),
    (names.TRAIN_LOSS, "Training loss", "nats", 1.0, True),
)
"""Metric, title, unit, factor to that unit, whether the axis is logarithmic."""

METRICS = (*(metric for metric, *_ in CURVES), *TIMES)
"""The metrics whose histories the comparisons use, beside the metrics of the runs."""

_MARKERS = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down",
    "<": "triangle-left", "P": "cross", "X": "x", "p": "pentagon", "h": "hexagon", "d": "diamond-tall",
    "H": "hexagon2", ">": "triangle-right", "*": "star",
}  # fmt: skip
_MOST_POINTS = 1000
_HEIGHT = 420  # pixels of a chart
_STYLE = (
    "body{font-family:system-ui,sans-serif;margin:0 auto;max-width:1100px;padding:12px;color:#1b1b1b;"
    "background:#fff}h1{font-size:20px}h2{font-size:16px;margin:28px 0 0}p{color:#555}"
)


def charts(runs: Sequence[RunHistory]) -> "list[tuple[str, Figure]]":
    """Titles and plotly figures that compare runs by their histories of `METRICS`; none is empty."""
    metrics = metric_labels.common(run.metric for run in runs)
    by_metric = {metric: [run for run in runs if run.metric == metric] for metric in metrics}
    drawn = [
        (f"{metric_labels.titled(metric.label)} against bytes", _front(judged, metric))
        for metric, judged in by_metric.items()
    ]
    for metric, title, unit, factor, log in CURVES:
        drawn.append((f"{title}, {unit}", _lines(runs, metric, unit, factor, log=log)))
    for judged_by, judged in by_metric.items():
        figure = _lines(judged, names.eval_metric(judged_by.name), judged_by.unit, judged_by.scale, log=False)
        drawn.append((metric_labels.titled(metric_labels.axis_label(judged_by)), figure))
    return [(title, figure) for title, figure in drawn if figure.data]


def layer_charts(run: RunHistory) -> "list[tuple[str, Figure]]":
    """Title and figure of gradient percentiles, with a menu of layers; empty without their histories."""
    from plotly.graph_objects import Figure, Scatter  # noqa: PLC0415 - takes a second

    figure, owners = Figure(), []
    layers = [layer for layer in layers_of(run) if layer_metric(layer, "grad_p50") in run.metrics]
    for layer in layers:
        for quantity, text, color in PERCENTILES:
            steps, values = thinned(run.metrics[layer_metric(layer, quantity)], _MOST_POINTS)
            trace = Scatter(x=steps, y=values, name=text, line={"color": color}, visible=layer == layers[0])
            figure.add_trace(trace)
            owners.append(layer)
    if not layers:
        return []
    choices = [
        {
            "label": html.escape(layer),
            "method": "update",
            "args": [{"visible": [owner == layer for owner in owners]}],
        }
        for layer in layers
    ]
    figure.update_layout(updatemenus=[{"buttons": choices, "x": 1, "xanchor": "right", "y": 1.18}])
    _dress(figure, "iteration", "magnitude of gradient elements", log_y=True)
    return [(f"Gradient percentiles by layer, {run.name}", figure)]


def page(title: str, drawn: "Sequence[tuple[str, Figure]]") -> str:
    """An HTML page of titles and figures that needs no network: 5 MB, with plotly's code."""
    from plotly.io import to_html  # noqa: PLC0415 - takes a second

    parts = []
    for i, (heading, figure) in enumerate(drawn):
        chart = to_html(
            figure,
            full_html=False,
            include_plotlyjs=i == 0,
            div_id=f"chart-{i}",
            config={"displaylogo": False, "responsive": True},
        )
        parts.append(f"<h2>{html.escape(heading)}</h2>\n{chart}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
        f"<h1>{html.escape(title)}</h1><p>Hover for values; drag to zoom; double click to go back; "
        "click a name to hide a run.</p>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _front(runs: Sequence[RunHistory], metric: Metric) -> "Figure":
    from plotly.graph_objects import Figure, Scatter  # noqa: PLC0415

    figure = Figure()
    for run in runs:
        value, wire = run.value, run.final(names.TOTAL_WIRE_GB)
        if value is None or not wire:
            continue
        if run.is_baseline:
            figure.add_hline(y=value, line={"dash": "dash", "color": "black", "width": 1})
        color, marker = rule_style(run.rule)
        seen = html.escape(metric.written(value))
        hover = f"<b>{html.escape(run.name)}</b><br>%{{x:.4g}} MB<br>{seen}<extra></extra>"
        figure.add_trace(
            Scatter(
                x=[1000 * wire],
                y=[value],
                name=html.escape(run.name),
                mode="markers",
                marker={"color": color, "symbol": _MARKERS[marker], "size": 11},
                hovertemplate=hover,
            )
        )
    _dress(figure, "MB on the wire, all workers (logarithmic)", metric_labels.final_label(metric), log_x=True)
    return figure


def _lines(runs: Sequence[RunHistory], metric: str, unit: str, factor: float, *, log: bool) -> "Figure":
    from plotly.graph_objects import Figure, Scatter  # noqa: PLC0415

    figure = Figure()
    for run in runs:
        history: History | None = run.metrics.get(metric)
        if history is None or not history[0].size:
            continue
        steps, values = thinned(history, _MOST_POINTS)
        name = html.escape(run.name)
        behind = html.escape(unit)
        figure.add_trace(
            Scatter(
                x=steps,
                y=factor * values,
                name=name,
                mode="lines+markers" if len(steps) < 60 else "lines",
                line={"color": rule_style(run.rule).color, "width": 1.4},
                hovertemplate=f"<b>{name}</b><br>iteration %{{x}}<br>%{{y:.4g}} {behind}<extra></extra>",
            )
        )
    _dress(figure, "iteration", unit, log_y=log)
    return figure


def _dress(figure: "Figure", xlabel: str, ylabel: str, *, log_x: bool = False, log_y: bool = False) -> None:
    def axis(title: str, log: bool) -> dict[str, Any]:
        scale: dict[str, Any] = {"type": "log", "dtick": 1} if log else {}
        return {"title": {"text": html.escape(title)}, "gridcolor": "#E4E4E4", "zeroline": False, **scale}

    figure.update_layout(
        height=_HEIGHT,
        template="none",
        margin={"l": 70, "r": 20, "t": 50, "b": 60},
        xaxis=axis(xlabel, log_x),
        yaxis=axis(ylabel, log_y),
        hovermode="closest",
        showlegend=True,
        legend={"font": {"size": 11}},
    )
