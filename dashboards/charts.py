"""The charts of a prepared view, as the plain data that MLflow's UI reads."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

Chart: TypeAlias = dict[str, Any]
"""A chart's card as MLflow's UI keeps it."""

# The page that compares runs shows a line chart's own title only when this is there; a chart over another
# metric would then miss that metric's history, and is headed by its metrics' names.
_TITLED: dict[str, Any] = {"nodeLevelSystemMetricConfiguration": {}}
_MOST_RUNS = 100
"""Runs in a chart, at most; the UI hides the others until asked."""


def line(
    uuid: str,
    title: str,
    metrics: Sequence[str],
    *,
    log: bool = False,
    x_metric: str | None = None,
    smoothness: int = 0,
    y_range: tuple[float, float] | None = None,
    outliers: bool = True,
) -> Chart:
    """A line for each run.

    Args:
        uuid: Names the card; unique in a view.
        title: What people read; a chart with `x_metric` is headed by its metrics' names instead.
        metrics: Vertical; several are told apart by dashes.
        log: Whether the vertical axis is logarithmic.
        x_metric: Horizontal; by default the step. MLflow pairs the values that stand at the same step.
        smoothness: 0 to 100, as in the UI's slider; the raw line stays visible behind.
        y_range: The vertical axis' ends; None leaves them to the UI, which ignores one end alone.
        outliers: Whether the largest and smallest 5% of a run's values are drawn.

    Returns:
        The card, still without a section.
    """
    return {
        **_card("LINE", uuid, title),
        "metricKey": metrics[0],
        "selectedMetricKeys": list(metrics),
        "xAxisKey": "metric" if x_metric else "step",
        "selectedXAxisMetricKey": x_metric or "",
        "useGlobalXaxisKey": False,
        "xAxisScaleType": "linear",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "scaleType": "log" if log else "linear",
        "range": {} if y_range is None else {"yMin": y_range[0], "yMax": y_range[1]},
        "lineSmoothness": smoothness,
        "useGlobalLineSmoothing": False,
        "ignoreOutliers": not outliers,
        "displayPoints": True if x_metric else None,
        **({} if x_metric else _TITLED),
    }


def scatter(uuid: str, title: str, x: str, y: str) -> Chart:
    """A point for each run, at the last values of two metrics."""
    axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
    return {**_card("SCATTER", uuid, title), **axes}


def parallel(uuid: str, title: str, params: Sequence[str], metrics: Sequence[str]) -> Chart:
    """A line for each run across axes of params and metrics; the last metric colours it."""
    return {
        **_card("PARALLEL", uuid, title),
        "selectedParams": list(params),
        "selectedMetrics": list(metrics),
        "showAllRuns": True,
    }


def view(
    sections: Mapping[str, tuple[int, int, Sequence[Chart]]],
    columns: Sequence[str],
    order: tuple[str, Literal["asc", "desc"]],
    unwanted: Iterable[str],
    search_filter: str = "",
) -> dict[str, Any]:
    """The whole state of MLflow's chart page.

    Args:
        sections: By title: cards in a row, a card's height in pixels, the cards.
        columns: Of the list of runs, such as ``metrics.`eval/accuracy` ``.
        order: The column that runs are sorted by. Never the start time: then the UI nests a search's
            trials under their folded parent and the charts stay empty.
        unwanted: Metrics; the UI adds a chart of its own for every metric that is neither here nor in a card.
        search_filter: MLflow's filter of runs.

    Returns:
        What the UI reads back; plain JSON.
    """
    cards = [
        card | {"metricSectionId": _section_id(title)}
        for title, (_, _, section) in sections.items()
        for card in section
    ]
    shown = {card["metricKey"] for card in cards if "metricKey" in card}
    return {
        "searchFilter": search_filter,
        "orderByKey": order[0],
        "orderByAsc": order[1] == "asc",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(columns),
        "runsPinned": [],
        "runsHidden": [],
        "runsHiddenMode": "SHOW_ALL",
        "runsVisibilityMap": {},
        "runListHidden": True,  # a third of a narrow window; the legend has the names, the table the rest
        "viewMaximized": False,
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "autoRefreshEnabled": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "compareRunSections": [_section(title, row, height) for title, (row, height, _) in sections.items()],
        "compareRunCharts": cards + [_left_out(metric) for metric in sorted(set(unwanted) - shown)],
    }


def _card(kind: str, uuid: str, title: str) -> Chart:
    return {
        "type": kind,
        "uuid": f"taugrad-{uuid}",
        "displayName": title,
        "runsCountToCompare": _MOST_RUNS,
        "deleted": False,
        "isGenerated": False,
    }


def _left_out(metric: str) -> Chart:
    """The least state that keeps the UI from adding a chart for a metric: tags have little room."""
    return {"type": "LINE", "metricKey": metric, "deleted": True}


def _section_id(title: str) -> str:
    return "taugrad-" + "-".join(title.lower().split())


def _section(title: str, cards_in_a_row: int, height: int) -> dict[str, Any]:
    return {
        "uuid": _section_id(title),
        "name": title,
        "columns": cards_in_a_row,
        "cardHeight": height,
        "display": True,
        "isReordered": True,
        "isGenerated": False,
        "deleted": False,
    }
