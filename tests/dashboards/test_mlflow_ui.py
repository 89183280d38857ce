"""MLflow's own UI, in a real Chromium: the prepared views open, and their charts hold the runs' data."""

from typing import Any

import psutil
import pytest
from browser import needs_chromium, open_page, screenshot
from servers import listeners

from taugrad.dashboards import prepare, views
from taugrad.dashboards.serving import mlflow_server
from taugrad.dashboards.shared_view import view_url
from taugrad.platform.tracking import names

pytestmark = needs_chromium

# The data of every chart that is drawn, from plotly's own record of it.
READ_CHARTS = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => ({
    x: plot.layout.xaxis?.title?.text || plot.layout.xaxis?.title,
    traces: plot.data.map(t => ({x: [...(t.x || [])], y: [...(t.y || [])]}))}))"""


@pytest.fixture(scope="module")
def server(prepared, tmp_path_factory):
    prepare.prepare(prepared.client, prepared.search_experiment_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false"
        )  # five more processes, which no view needs
        others = psutil.Process().children(recursive=True)
        with mlflow_server(prepared.uri, tmp_path_factory.mktemp("server") / "mlflow.log") as url:
            started = [one for one in psutil.Process().children(recursive=True) if one not in others]
            yield url, started
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []  # it ends with its context, and so does what it started


def read_view(url: str, experiment_id: str, key: str) -> Any:
    """Opens a view; what its charts hold. The UI draws what is in sight: so high a window."""
    with open_page(1500, 2600) as (page, _):
        page.goto(view_url(url, experiment_id, key))
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length >= 3")
        page.wait_for_timeout(1500)  # lines arrive after their axes
        screenshot(page, "mlflow-search")
        return page.evaluate(READ_CHARTS)


def ends_of_front(drawn: Any) -> list[float]:
    """Of the chart of accuracy over MB: the MB, as powers of ten, at the end of each run's line."""
    (front,) = [chart for chart in drawn if chart["x"] == names.TOTAL_WIRE_MB_LOG10]
    return sorted(max(x) for x in {tuple(trace["x"]) for trace in front["traces"] if trace["y"]})


def finals(prepared: Any, run_ids: list[str], metric: str) -> list[float]:
    return sorted(prepared.client.get_run(run_id).data.metrics[metric] for run_id in run_ids)


def test_a_searchs_view_shows_its_front_and_dimensions(prepared, server):
    key = views.search_key(prepared.parent)
    drawn = read_view(server[0], prepared.search_experiment_id, key)
    assert ends_of_front(drawn) == pytest.approx(finals(prepared, prepared.trials, names.TOTAL_WIRE_MB_LOG10))
    (by_tau,) = [chart for chart in drawn if chart["x"] == "view/compressor.tau_log10"]
    assert len(by_tau["traces"][0]["y"]) == len(prepared.trials)


def test_the_server_listens_on_loopback_only_and_says_no_store_in_its_command_lines(prepared, server):
    _, processes = server
    assert listeners(processes) == {"127.0.0.1"}
    assert prepared.uri not in " ".join(" ".join(process.cmdline()) for process in processes)
