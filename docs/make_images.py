"""The pictures of README.md and docs/: `python docs/make_images.py EXPERIMENT`, with playwright and chromium.

Reads the experiment from MLFLOW_TRACKING_URI, a local database, and replaces mlflow_view.png, report.png and
accuracy_by_setting.png in docs/images.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from taugrad.dashboards import prepare
from taugrad.dashboards.experiment import all_runs, compared_runs, find_experiment
from taugrad.dashboards.figures import save
from taugrad.dashboards.groups import by_setting
from taugrad.dashboards.report import write_report
from taugrad.dashboards.serving import mlflow_server
from taugrad.dashboards.shared_view import view_url
from taugrad.dashboards.sweeps import value_by_setting
from taugrad.platform.tracking.store import open_client, tracking_uri

IMAGES = Path(__file__).parent / "images"
TIMEOUT_MS = 180_000
SETTLE_MS = 10_000  # lines arrive after their axes


def main(experiment: str) -> None:
    """Writes all pictures."""
    client = open_client(tracking_uri())
    experiment_id = find_experiment(client, experiment)
    draw_figure(client, experiment_id)
    (view, *_) = prepare.prepare(client, experiment_id)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1500, "height": 1180})
        page.set_default_timeout(TIMEOUT_MS)
        with mlflow_server(client.tracking_uri, folder / "log") as server:
            page.goto(view_url(server.url, experiment_id, view.key))
            # MLflow's chat panel opens by itself on a first visit.
            page.locator('[data-component-id="mlflow.assistant.chat_panel.close"]').click(force=True)
            page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length >= 4")
            page.wait_for_timeout(SETTLE_MS)
            keep(page, "mlflow_view")
        report = write_report(client, experiment, experiment_id, folder, prepare.LOCAL_SERVER)
        page.set_viewport_size({"width": 1100, "height": 760})
        page.goto(report.as_uri())
        keep(page, "report")
        browser.close()


def draw_figure(client: Any, experiment_id: str) -> None:
    """The figure of accuracy against bytes."""
    groups = by_setting(compared_runs(all_runs(client, experiment_id)))
    save(value_by_setting(groups), IMAGES / "accuracy_by_setting.png")


def keep(page: Page, name: str) -> None:
    """A picture of what is in sight."""
    page.screenshot(path=IMAGES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1])
