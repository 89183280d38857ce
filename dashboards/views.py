"""What the prepared views show: one to compare an experiment's runs, one for each search in it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from taugrad.platform.tracking import names

from . import charts

COMPARISON_KEY = "taugradcomparison"
"""The comparison's key: the same in every experiment, so that its URL stays valid."""

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
"""Params of a compressor that decide what is sent, with the words for people."""

_COLUMNS = (
    "attributes.`Status`",
    f"params.`{names.PARAM_RULE}`",
    f"params.`{names.PARAM_TAU}`",
    f"metrics.`{names.EVAL_ACCURACY}`",
    f"metrics.`{names.TOTAL_WIRE_GB}`",
    f"metrics.`{names.TOTAL_COMPRESSION_RATIO}`",
    f"metrics.`{names.TOTAL_FRACTION}`",
    f"metrics.`{names.TOTAL_ACCURACY_PER_GB}`",
    f"metrics.`{names.TOTAL_SECONDS}`",
)
# Those that exist before the first run has logged anything.
_OURS = tuple(
    value
    for name, value in vars(names).items()
    if isinstance(value, str) and name.isupper() and not name.startswith(("TAG_", "PARAM_", "_"))
)
_MOST_DIMENSIONS = 6
_NO_DIMENSIONS = ("name", "seed", "storage", "experiment")


def search_key(parent_run_id: str) -> str:
    """The key of a search's view."""
    return f"taugradsearch{parent_run_id[:12]}"


def comparison(params: Iterable[str], metrics: Iterable[str]) -> dict[str, Any]:
    """The view that compares runs.

    Args:
        params: Names of the runs' params; knobs that no run has get no chart.
        metrics: Names of the runs' metrics, to keep the UI from adding a chart for each.

    Returns:
        The state of MLflow's chart page.
    """
    known = set(params)
    knobs = {param: name for param, name in KNOBS.items() if param in known}
    if not known:  # no run yet: the papers' own
        knobs = {param: name for param, name in KNOBS.items() if name in ("tau", "floor", "block")}
    return charts.view(
        {
            "Accuracy against wire MB (powers of ten)": (
                2,
                380,
                [_front(), _course()],
            ),
            "What is sent": (
                2,
                320,
                [
                    charts.line(
                        "fraction",
                        "Fraction of elements sent, per iteration (log)",
                        [names.COMM_FRACTION],
                        log=True,
                        smoothness=60,
                    ),
                    charts.line(
                        "wire-mb", "Wire MB so far, all workers (log)", [names.COMM_WIRE_MB_TOTAL], log=True
                    ),
                    charts.line(
                        "epoch-bits",
                        "Bits per parameter on the wire, per epoch (log)",
                        [names.EPOCH_BITS_PER_PARAM],
                        log=True,
                        x_metric=names.EPOCH,
                    ),
                    charts.line("tau", "Threshold tau in use", [names.COMM_TAU]),
                ],
            ),
            "How it learns": (
                2,
                320,
                [
                    charts.line("accuracy", "Test accuracy", [names.EVAL_ACCURACY]),
                    charts.line(
                        "loss", "Training loss (log, smoothed)", [names.TRAIN_LOSS], log=True, smoothness=80
                    ),
                    charts.line("eval-loss", "Test loss", [names.EVAL_LOSS]),
                    charts.line(
                        "residual",
                        "Residual: root mean square not sent yet (log)",
                        [names.COMM_RESIDUAL_RMS],
                        log=True,
                        smoothness=60,
                    ),
                ],
            ),
            **{
                f"What {name} does to wire MB and accuracy": (
                    1,
                    320,
                    [
                        charts.parallel(
                            f"parallel-{param.replace('.', '-')}",
                            name,
                            [names.PARAM_RULE, param],
                            [names.TOTAL_WIRE_MB_LOG10, names.EVAL_ACCURACY],
                        )
                    ],
                )
                for param, name in knobs.items()
            },
            "Where a step's time goes, seconds": (
                2,
                280,
                [
                    charts.line(f"time-{name}", title, [metric], smoothness=80)
                    for name, title, metric in (
                        ("compute", "Compute", names.TIME_COMPUTE),
                        ("compress", "Compress", names.TIME_COMPRESS),
                        ("exchange", "Exchange (runs beside the backward pass)", names.TIME_EXCHANGE),
                        ("decompress", "Decompress and add", names.TIME_DECOMPRESS),
                    )
                ],
            ),
        },
        _COLUMNS,
        (f"params.`{names.PARAM_RULE}`", "asc"),
        [*_OURS, *metrics],
    )


def search(parent_run_id: str, trials: Sequence[Mapping[str, str]], metrics: Iterable[str]) -> dict[str, Any]:
    """The view of one search: its front, and what its dimensions do.

    Args:
        parent_run_id: The search's run, under which the trials are nested.
        trials: Each trial's params.
        metrics: Names of the trials' metrics.

    Returns:
        The state of MLflow's chart page.
    """
    varied = dimensions(trials)[:_MOST_DIMENSIONS]
    named = [KNOBS.get(param, param.rpartition(".")[2]) for param in varied]
    across = [
        charts.scatter(f"by-{i}", f"Accuracy by {name}", param, names.EVAL_ACCURACY)
        for i, (param, name) in enumerate(zip(varied, named, strict=True))
    ]
    for chart in across:
        chart["xaxis"]["type"] = "PARAM"
    sections: dict[str, tuple[int, int, Sequence[charts.Chart]]] = {
        "The front: accuracy against wire MB": (
            1,
            440,
            [_front()],
        ),
        "What the dimensions do to wire MB and accuracy": (
            1,
            380,
            [
                charts.parallel(
                    "dimensions",
                    "Dimensions",
                    varied or [names.PARAM_RULE],
                    [names.TOTAL_WIRE_MB_LOG10, names.EVAL_ACCURACY],
                )
            ],
        ),
    }
    if across:
        sections["One dimension at a time"] = (2, 300, across)
    sections["Trials while they run"] = (
        2,
        320,
        [
            charts.line("accuracy", "Test accuracy", [names.EVAL_ACCURACY]),
            _course(),
        ],
    )
    columns = [
        "attributes.`Status`",
        *(f"params.`{param}`" for param in varied),
        *_COLUMNS[3:6],
        f"tags.`{names.TAG_TRIAL}`",
    ]
    return charts.view(
        sections,
        columns,
        (f"metrics.`{names.EVAL_ACCURACY}`", "desc"),
        [*_OURS, *metrics],
        search_filter=f"tags.`mlflow.parentRunId` = '{parent_run_id}'",
    )


def dimensions(trials: Sequence[Mapping[str, str]]) -> list[str]:
    """The params in which trials differ, the compressor's first."""
    values: dict[str, set[str]] = {}
    for params in trials:
        for param, value in params.items():
            values.setdefault(param, set()).add(value)
    varied = [
        param
        for param, found in values.items()
        if len(found) > 1 and param not in ("name", "seed", "storage")
    ]
    return sorted(varied, key=lambda param: (not param.startswith("compressor."), param))


def _front() -> charts.Chart:
    return charts.scatter("front", "Accuracy against wire MB", names.TOTAL_WIRE_MB_LOG10, names.EVAL_ACCURACY)


def _course() -> charts.Chart:
    """How a run came to its point on the front: from evaluation to evaluation."""
    return charts.line(
        "course", "Accuracy against wire MB so far", [names.EVAL_ACCURACY], x_metric=names.TOTAL_WIRE_MB_LOG10
    )
