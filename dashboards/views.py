"""The content of the prepared views: one compares an experiment's runs, and one shows each search."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from taugrad.platform.tasks.metric import ACCURACY, LOSS, Metric
from taugrad.platform.tracking import names

from . import charts
from .metric_labels import tested, titled

COMPARISON_KEY = "taugradcomparison"
"""The comparison's key: the same in every experiment, so that its URL stays valid."""

MARK = "comparison"
"""The tag of runs that the comparison shows, if it does not show all."""

KNOBS = {
    names.PARAM_TAU: "tau",
    "compressor.tau.target": "target density",
    "compressor.floor": "floor",
    "compressor.block": "block",
    "compressor.quantize.block": "block of what is left",
    "compressor.density": "density",
    "compressor.bits": "bits",
    "compressor.rank": "rank",
}
"""Params of a compressor that decide what is sent, with their displayed names."""

_FIRST_COLUMNS = (
    "attributes.`Status`",
    f"params.`{names.PARAM_RULE}`",
    f"params.`{names.PARAM_TAU}`",
)
_BYTES = (f"metrics.`{names.TOTAL_WIRE_GB}`", f"metrics.`{names.TOTAL_COMPRESSION_RATIO}`")
# Known before the first run has logged anything.
_OURS = tuple(
    value
    for name, value in vars(names).items()
    if isinstance(value, str) and name.isupper() and not name.startswith(("TAG_", "PARAM_", "_"))
)
_STEP_CHARTS = (
    ("compute", "Compute", names.TIME_COMPUTE),
    ("compress", "Compress", names.TIME_COMPRESS),
    ("wait", "Wait", names.TIME_WAIT),
    ("decompress", "Decompress", names.TIME_DECOMPRESS),
    ("overlap", "Overlap", names.TIME_OVERLAP),
    ("mbit", "Mbit/s sent", names.NET_MBIT),
)
_MOST_DIMENSIONS = 6
_NO_DIMENSIONS = ("name", "seed", "storage")


def search_key(parent_run_id: str) -> str:
    """The key of a search's view."""
    return f"taugradsearch{parent_run_id[:12]}"


def comparison(
    params: Iterable[str],
    metrics: Collection[str],
    judged: Sequence[Metric] = (ACCURACY,),
    *,
    search_filter: str = "",
    alone: bool = False,
    varied: Sequence[str] = (),
) -> dict[str, Any]:
    """The state of MLflow's chart page that compares runs.

    Args:
        params: Names of the runs' params; knobs that no run has get no chart.
        metrics: Names of the runs' metrics, to keep the UI from adding a chart for each.
        judged: The runs' metrics, that of most runs first; each has charts of its own.
        search_filter: MLflow's filter of runs; empty for all.
        alone: Whether there is one run only. Around its only value, the UI would draw an axis of accuracy
            from 0 to 1.5.
        varied: Params in which runs differ beside what is compared, for the table of runs.
    """
    known = set(params)
    knobs = {param: name for param, name in KNOBS.items() if param in known}
    if not known:  # no run yet: the papers' own
        knobs = {param: name for param, name in KNOBS.items() if name in ("tau", "floor", "block")}
    if known & {"sync.every", "sync.of.every"}:  # local steps send nothing between exchanges
        fraction = charts.line("fraction", "Fraction so far", [names.TOTAL_FRACTION], log=True)
    else:
        fraction = charts.line("fraction", "Fraction sent", [names.COMM_FRACTION], log=True, smoothness=60)
    sent = [
        fraction,
        charts.line("wire-mb", "Wire MB so far", [names.COMM_WIRE_MB_TOTAL], log=True),
        charts.line("epoch-bits", "Bits per parameter", [names.EPOCH_BITS_PER_PARAM], log=True),
        charts.line("tau", "Threshold tau", [names.COMM_TAU]),
    ]
    learned = [
        *_values(judged, alone),
        charts.line("loss", "Training loss", [names.TRAIN_LOSS], log=True, smoothness=80),
        *([] if LOSS in judged else [charts.line("eval-loss", "Test loss", [names.EVAL_LOSS])]),
        charts.line("residual", "Residual (RMS)", [names.COMM_RESIDUAL_RMS], log=True, smoothness=60),
    ]
    every_rule = [
        charts.parallel(
            f"parallel-all{_suffix(metric)}",
            f"Rule, what it sends, what it reaches: {metric.label}",
            [names.PARAM_RULE],
            [names.TOTAL_FRACTION, names.TOTAL_WIRE_MB_LOG10, _logged(metric)],
        )
        for metric in judged
    ]
    seconds = [
        charts.line(f"time-{name}", title, [metric], smoothness=80, outliers=False)
        for name, title, metric in _STEP_CHARTS
    ]
    sections: dict[str, tuple[int, int, Sequence[charts.Chart]]] = {
        **{f"{titled(metric.label)} by MB sent": (1, 380, [_front(metric, alone)]) for metric in judged},
        "What is sent": (2, 320, sent),
        "How it learns": (2, 320, learned),
        "Every rule": (1, 320, every_rule),
    }
    for param, name in knobs.items():
        uuids = {f"parallel-{param.replace('.', '-')}{_suffix(metric)}": metric for metric in judged}
        knob_charts = [_parallel(uuid, name, [param], metrics, metric) for uuid, metric in uuids.items()]
        sections[f"By {name}"] = (1, 320, knob_charts)
    sections["Seconds of a step"] = (2, 280, seconds)
    columns = [
        *_FIRST_COLUMNS,
        *(f"params.`{param}`" for param in varied[:_MOST_DIMENSIONS]),
        *(f"metrics.`{_logged(metric)}`" for metric in judged),
        *_BYTES,
        f"metrics.`{names.TOTAL_FRACTION}`",
        *([f"metrics.`{names.TOTAL_ACCURACY_PER_GB}`"] if ACCURACY in judged else []),
        f"metrics.`{names.TOTAL_SECONDS}`",
    ]
    return charts.view(
        sections,
        columns,
        (f"params.`{names.PARAM_RULE}`", "asc"),
        [*_OURS, *metrics],
        search_filter=search_filter,
    )


def search(
    parent_run_id: str,
    trials: Sequence[Mapping[str, str]],
    metrics: Collection[str],
    judged: Metric = ACCURACY,
) -> dict[str, Any]:
    """The state of MLflow's chart page of a search: its front, and the effect of its dimensions.

    Args:
        parent_run_id: The search's run, under which the trials are nested.
        trials: Each trial's params.
        metrics: Names of the trials' metrics.
        judged: The metric that they are judged by.
    """
    varied = [param for param in dimensions(trials) if param != names.PARAM_RULE]
    across = [_across(i, param, metrics, judged) for i, param in enumerate(varied[:_MOST_DIMENSIONS])]
    sections: dict[str, tuple[int, int, Sequence[charts.Chart]]] = {
        f"The front: {judged.label}": (1, 440, [_front(judged)]),
        # MLflow draws a line only for runs that have every axis: methods with other dimensions get a chart.
        "Searched fields": (
            1,
            380,
            [
                _parallel(
                    f"dimensions-{i}",
                    _dimensions_title(params, rules),
                    params[:_MOST_DIMENSIONS],
                    metrics,
                    judged,
                )
                for i, (params, rules) in enumerate(_by_dimensions(trials, varied).items())
            ]
            or [_parallel("dimensions", "Dimensions", [], metrics, judged)],
        ),
    }
    if across:
        sections["One field at a time"] = (1, 300, across)
    sections["Trials while they run"] = (2, 320, _values([judged]))
    columns = [
        "attributes.`Status`",
        f"params.`{names.PARAM_RULE}`",
        *(f"params.`{param}`" for param in varied),
        f"metrics.`{_logged(judged)}`",
        *_BYTES,
        f"tags.`{names.TAG_TRIAL}`",
    ]
    return charts.view(
        sections,
        columns,
        (f"metrics.`{_logged(judged)}`", "desc" if judged.more_is_better else "asc"),
        [*_OURS, *metrics],
        search_filter=f"tags.`{names.TAG_PARENT}` = '{parent_run_id}'",
    )


def dimensions(trials: Sequence[Mapping[str, str]]) -> list[str]:
    """The params in which trials differ, the compressor's first; without those that follow from its rule."""
    values: dict[str, set[str]] = {}
    within: dict[tuple[str, str], set[str]] = {}
    for params in trials:
        rule = params.get(names.PARAM_RULE, "")
        for param, value in params.items():
            values.setdefault(param, set()).add(value)
            within.setdefault((param, rule), set()).add(value)
    moved = {param for (param, _), values in within.items() if len(values) > 1}
    varied = [
        param
        for param, within_param in values.items()
        if len(within_param) > 1
        and param not in _NO_DIMENSIONS
        and (param in moved or param == names.PARAM_RULE or param in KNOBS)
    ]
    return sorted(varied, key=lambda param: (not param.startswith("compressor."), param))


def _by_dimensions(
    trials: Sequence[Mapping[str, str]], varied: Sequence[str]
) -> dict[tuple[str, ...], list[str]]:
    """The rules of the trials by the dimensions that they have; trials without one are left out."""
    by_dimensions: dict[tuple[str, ...], list[str]] = {}
    for params in trials:
        dimensions = tuple(param for param in varied if param in params)
        rules, rule = by_dimensions.setdefault(dimensions, []), params.get(names.PARAM_RULE, "")
        if rule not in rules:
            rules.append(rule)
    return {dimensions: rules for dimensions, rules in by_dimensions.items() if dimensions}


def _dimensions_title(params: Sequence[str], rules: Sequence[str]) -> str:
    return f"{', '.join(_word(param) for param in params)} of {', '.join(rules)}"


def _parallel(
    uuid: str, title: str, params: Sequence[str], metrics: Collection[str], judged: Metric
) -> charts.Chart:
    """Rule, settings, bytes and metric; a setting that spans powers of ten as its logarithm."""
    logs = [log_metric(param) for param in params if log_metric(param) in metrics]
    plain = [param for param in params if log_metric(param) not in metrics]
    axes = [*logs, names.TOTAL_WIRE_MB_LOG10, _logged(judged)]
    powers = " (settings and wire MB as powers of ten)" if logs else ""
    return charts.parallel(f"{uuid}{_suffix(judged)}", f"{title}{powers}", [names.PARAM_RULE, *plain], axes)


def _across(i: int, param: str, metrics: Collection[str], judged: Metric) -> charts.Chart:
    """A point for each trial, over one dimension."""
    if log_metric(param) in metrics:
        title = f"{titled(judged.label)} by {_word(param)} (powers of ten)"
        return charts.scatter(f"by-{i}", title, log_metric(param), _logged(judged))
    chart = charts.scatter(f"by-{i}", f"{titled(judged.label)} by {_word(param)}", param, _logged(judged))
    chart["xaxis"]["type"] = "PARAM"
    return chart


def _word(param: str) -> str:
    return KNOBS.get(param, param.rpartition(".")[2])


def _logged(metric: Metric) -> str:
    return names.eval_metric(metric.name)


def _suffix(metric: Metric) -> str:
    """The suffix of a metric's cards; accuracy's have none."""
    return "" if metric == ACCURACY else f"-{metric.name}"


def _ends(metric: Metric, alone: bool) -> tuple[float, float] | None:
    """The limits of a metric's axis, if the UI would choose them badly."""
    return (0.0, 1.0) if alone and metric.unit == "%" else None


def _values(judged: Sequence[Metric], alone: bool = False) -> list[charts.Chart]:
    """Charts of metrics over evaluations."""
    return [
        charts.line(
            "eval-loss" if metric == LOSS else metric.name,
            titled(tested(metric)),
            [_logged(metric)],
            y_range=_ends(metric, alone),
        )
        for metric in judged
    ]


def _front(metric: Metric, alone: bool = False) -> charts.Chart:
    """The metric over MB sent as powers of ten, evaluation by evaluation; a run's rightmost point is its end.

    No chart of MLflow has a logarithmic axis of a metric.
    """
    return charts.line(
        f"front{_suffix(metric)}",
        f"{titled(metric.label)} by MB sent",
        [_logged(metric)],
        x_metric=names.TOTAL_WIRE_MB_LOG10,
        y_range=_ends(metric, alone),
    )


def log_metric(param: str) -> str:
    """The metric that holds the decimal logarithm of a param: some of MLflow's charts have no such axis."""
    return f"view/{param}_log10"
