"""The report and the interactive charts in a real Chromium: whole, without errors, without network."""

import pytest
from browser import needs_chromium, open_page, screenshot

from taugrad.dashboards import report

pytestmark = [needs_chromium, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    server = "http://127.0.0.1:5000"
    report.write_report(prepared.client, prepared.experiment, prepared.experiment_id, folder, server)
    return folder


def test_the_pages_are_whole_without_network_and_fit_the_screen(prepared, folder):
    runs = map(prepared.client.get_run, prepared.run_ids)
    accuracies = [100 * run.data.metrics["eval/accuracy"] for run in runs]
    for width in (1280, 390):
        with open_page(width, 900) as (page, errors):
            page.context.set_offline(True)
            page.goto((folder / "report.html").as_uri())
            screenshot(page, f"report-{width}", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            pictures = page.evaluate("[...document.querySelectorAll('figure img')].map(i => i.naturalWidth)")
            assert len(pictures) == 12
            assert min(pictures) > 200
            page.goto((folder / "interactive.html").as_uri())
            page.wait_for_function("document.querySelectorAll('.js-plotly-plot .trace').length > 10")
            screenshot(page, f"interactive-{width}", full_page=True)
            drawn = page.evaluate("document.querySelector('.js-plotly-plot').data.map(t => t.y[0])")
            assert len(drawn) == 6  # a setting for each rule
            assert all(any(y == pytest.approx(accuracy) for accuracy in accuracies) for y in drawn)
            assert errors == []
