"""MLflow's own UI, in a real Chromium: the prepared views open, and their charts hold the runs' data."""

from typing import Any

import psutil
import pytest
from benchmarks.platform.faults.commands import family
from browser import needs_chromium, open_page, screenshot
from servers import listeners

from taugrad.dashboards import prepare, views
from taugrad.dashboards.serving import Server, mlflow_server
from taugrad.dashboards.shared_view import view_url
from taugrad.platform.tracking import names

pytestmark = needs_chromium

# What MLflow's UI itself says on an untouched installation, of its own user accounts and of its layout.
MLFLOWS_OWN = ("404 (Not Found)", "ResizeObserver loop")
# Where the server is slow and the browser busy, it draws parallel coordinates before their panel has a size,
# then again; WITHOUT_SIZE finds what stayed like that.
DRAWN_TOO_EARLY = "> attribute "
WITHOUT_SIZE = """() => [...document.querySelectorAll('svg *')].filter(drawn => [...drawn.attributes].some(
    ({name, value}) => value.includes('NaN') || (['width', 'height'].includes(name) && parseFloat(value) < 0)
)).map(drawn => drawn.outerHTML)"""
# Texts that do not fit, and end with three dots.
CUT = """() => [...document.querySelectorAll('*')].filter(
    each => getComputedStyle(each).textOverflow === 'ellipsis' && each.scrollWidth > each.clientWidth
).map(each => each.innerText)"""
# The data of every chart that is drawn, from plotly's own record of it.
READ_CHARTS = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => ({
    x: plot.layout.xaxis?.title?.text || plot.layout.xaxis?.title,
    log: plot.layout.yaxis?.type === 'log',
    traces: plot.data.map(t => ({name: t.name, key: t.metricKey, x: [...(t.x || [])], y: [...(t.y || [])],
                                 color: t.line?.color || t.marker?.color}))}))"""


def titles_of(state: Any) -> set[str]:
    cards = [tensor["displayName"] for tensor in state["compareRunCharts"] if "displayName" in tensor]
    return {*cards, *(tensor["name"] for tensor in state["compareRunSections"])}


TITLES = titles_of(views.comparison(views.KNOBS, views.KNOBS)) | titles_of(views.search("parent", [], []))


@pytest.fixture(scope="module")
def server(prepared, tmp_path_factory):
    for experiment_id in (prepared.experiment_id, prepared.search_experiment_id):
        prepare.prepare(prepared.client, experiment_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false"
        )  # five more processes, which no view needs
        with mlflow_server(prepared.uri, tmp_path_factory.mktemp("server") / "mlflow.log") as running:
            started = family(running.pid)
            yield running
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []  # it ends with its context, and so does what it started


def read_view(
    server: Server, experiment_id: str, key: str, picture: str, charts: int, height: int
) -> tuple[Any, str]:
    """Opens a view; what its charts hold, and the page's text. The UI draws what is in sight: so high."""
    with open_page(1500, height) as (page, errors):
        page.goto(view_url(server.url, experiment_id, key))
        page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot').length >= {charts}")
        page.wait_for_timeout(1500)  # lines arrive after their axes
        screenshot(page, picture)
        page.wait_for_function(f"({WITHOUT_SIZE})().length === 0")
        drawn, text = page.evaluate(READ_CHARTS), page.inner_text("body")
        cut = page.evaluate(CUT)
    known = (*MLFLOWS_OWN, DRAWN_TOO_EARLY)
    assert [error for error in errors if not any(text in error for text in known)] == []
    assert [words for words in cut if words in TITLES] == []
    return drawn, text


def ends_of_front(drawn: Any) -> list[tuple[float, float]]:
    """Of the chart of GB (logarithmic) over accuracy: accuracy and GB at the end of each run's line."""
    (front,) = [chart for chart in drawn if chart["x"] == names.EVAL_ACCURACY]
    assert front["log"]
    lines = {(tuple(trace["x"]), tuple(trace["y"])) for trace in front["traces"] if trace["y"]}
    return sorted((x[at], y[at]) for x, y in lines for at in [y.index(max(y))])


def finals(prepared: Any, run_ids: list[str], metric: str) -> list[float]:
    return sorted(prepared.client.get_run(run_id).data.metrics[metric] for run_id in run_ids)


@pytest.mark.long
def test_the_comparison_opens_with_charts_that_hold_the_runs(prepared, server):
    charts = 13  # and four of parallel coordinates, which are none of plotly's
    drawn, text = read_view(
        server, prepared.experiment_id, views.COMPARISON_KEY, "mlflow-comparison", charts, 5200
    )
    for words in (
        "Accuracy and wire GB", "What is sent", "How it learns", "By tau", "By floor", "Seconds of a step",
        "Every rule", "Fraction sent", "Wire MB so far", "Bits per parameter", "Test accuracy",
    ):  # fmt: skip
        assert words in text
    assert "layer/" not in text  # no charts of the UI's own
    assert sorted(gb for _, gb in ends_of_front(drawn)) == pytest.approx(
        finals(prepared, prepared.run_ids, names.TOTAL_WIRE_GB)
    )
    colors = {trace["color"] for chart in drawn for trace in chart["traces"]}
    assert {"#000000", "#0072B2", "#D55E00"} <= colors
    fractions = [
        chart for chart in drawn if chart["traces"] and chart["traces"][0]["key"] == names.COMM_FRACTION
    ]
    lines = [trace for trace in fractions[0]["traces"] if len(trace["y"]) > 1]
    assert fractions[0]["log"]
    assert len({tuple(line["y"]) for line in lines}) >= len(prepared.run_ids)
    for metric in (names.COMM_WIRE_MB_TOTAL, names.EPOCH_BITS_PER_PARAM, names.EVAL_LOSS, names.TIME_COMPUTE):
        shown = [c for c in drawn if any(t["key"] == metric and len(t["y"]) > 1 for t in c["traces"])]
        assert shown, metric


def test_a_searchs_view_shows_its_front_and_dimensions(prepared, server):
    key = views.search_key(prepared.parent)
    drawn, text = read_view(server, prepared.search_experiment_id, key, "mlflow-search", 3, 2600)
    assert "The front" in text
    assert "Searched fields" in text
    assert sorted(gb for _, gb in ends_of_front(drawn)) == pytest.approx(
        finals(prepared, prepared.trials, names.TOTAL_WIRE_GB)
    )
    (by_tau,) = [chart for chart in drawn if chart["x"] == "view/compressor.tau_log10"]
    assert len(by_tau["traces"][0]["y"]) == len(prepared.trials)


def test_the_server_listens_on_loopback_only(server):
    assert listeners(family(server.pid)) == {"127.0.0.1"}
