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

# The data of every chart that is drawn, from plotly's own record of it.
READ_CHARTS = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => ({
    x: plot.layout.xaxis?.title?.text || plot.layout.xaxis?.title,
    traces: plot.data.map(t => ({name: t.name, key: t.metricKey, x: [...(t.x || [])], y: [...(t.y || [])],
                                 color: t.line?.color || t.marker?.color}))}))"""


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
    with open_page(1500, height) as (page, _):
        page.goto(view_url(server.url, experiment_id, key))
        page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot').length >= {charts}")
        page.wait_for_timeout(1500)  # lines arrive after their axes
        screenshot(page, picture)
        return page.evaluate(READ_CHARTS), page.inner_text("body")


def ends_of_front(drawn: Any) -> list[float]:
    """Of the chart of accuracy over MB: the MB, as powers of ten, at the end of each run's line."""
    (front,) = [chart for chart in drawn if chart["x"] == names.TOTAL_WIRE_MB_LOG10]
    return sorted(max(x) for x in {tuple(trace["x"]) for trace in front["traces"] if trace["y"]})


def finals(prepared: Any, run_ids: list[str], metric: str) -> list[float]:
    return sorted(prepared.client.get_run(run_id).data.metrics[metric] for run_id in run_ids)


@pytest.mark.long
def test_the_comparison_opens_with_charts_that_hold_the_runs(prepared, server):
    charts = 13  # and four of parallel coordinates, which are none of plotly's
    drawn, text = read_view(
        server, prepared.experiment_id, views.COMPARISON_KEY, "mlflow-comparison", charts, 5200
    )
    for words in (
        "Accuracy by MB sent", "What is sent", "How it learns", "By tau", "By floor", "Seconds of a step",
        "Every rule", "Fraction sent", "Wire MB so far", "Bits per parameter", "Test accuracy",
    ):  # fmt: skip
        assert words in text
    assert "layer/" not in text  # no charts of the UI's own
    assert ends_of_front(drawn) == pytest.approx(
        finals(prepared, prepared.run_ids, names.TOTAL_WIRE_MB_LOG10)
    )
    colors = {trace["color"] for chart in drawn for trace in chart["traces"]}
    assert {"#000000", "#0072B2", "#D55E00"} <= colors
    for metric in (names.COMM_WIRE_MB_TOTAL, names.EPOCH_BITS_PER_PARAM, names.EVAL_LOSS, names.TIME_COMPUTE):
        shown = [c for c in drawn if any(t["key"] == metric and len(t["y"]) > 1 for t in c["traces"])]
        assert shown, metric


def test_a_searchs_view_shows_its_front_and_dimensions(prepared, server):
    key = views.search_key(prepared.parent)
    drawn, text = read_view(server, prepared.search_experiment_id, key, "mlflow-search", 3, 2600)
    assert "The front" in text
    assert "Searched fields" in text
    assert ends_of_front(drawn) == pytest.approx(finals(prepared, prepared.trials, names.TOTAL_WIRE_MB_LOG10))
    (by_tau,) = [chart for chart in drawn if chart["x"] == "view/compressor.tau_log10"]
    assert len(by_tau["traces"][0]["y"]) == len(prepared.trials)


def test_the_server_listens_on_loopback_only(server):
    assert listeners(family(server.pid)) == {"127.0.0.1"}
