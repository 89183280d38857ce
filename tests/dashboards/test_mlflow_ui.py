"""MLflow's own UI, in a real Chromium: the prepared views open, and show their charts."""

import psutil
import pytest
from browser import needs_chromium, open_page, screenshot
from servers import listeners

from taugrad.dashboards import prepare, views
from taugrad.dashboards.serving import mlflow_server
from taugrad.dashboards.shared_view import view_url
from taugrad.platform.tracking import names

pytestmark = needs_chromium

# By its axis, how many points each chart draws; from plotly's own record of it.
READ_CHARTS = """() => Object.fromEntries([...document.querySelectorAll('.js-plotly-plot')].map(plot => [
    plot.layout.xaxis?.title?.text || plot.layout.xaxis?.title,
    plot.data.map(t => (t.y || []).length).reduce((a, b) => a + b, 0)]))"""


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


def test_a_searchs_view_shows_its_front_and_dimensions(prepared, server):
    """The UI draws what is in sight: so high a window."""
    with open_page(1500, 2600) as (page, _):
        page.goto(view_url(server[0], prepared.search_experiment_id, views.search_key(prepared.parent)))
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length >= 3")
        page.wait_for_timeout(1500)  # lines arrive after their axes
        screenshot(page, "mlflow-search")
        drawn = page.evaluate(READ_CHARTS)
    assert drawn[names.TOTAL_WIRE_MB_LOG10] >= len(prepared.trials)
    assert drawn["view/compressor.tau_log10"] == len(prepared.trials)


def test_the_server_listens_on_loopback_only_and_says_no_store_in_its_command_lines(prepared, server):
    _, processes = server
    assert listeners(processes) == {"127.0.0.1"}
    assert prepared.uri not in " ".join(" ".join(process.cmdline()) for process in processes)
