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


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_report_fits_the_screen(folder, width, height):
    with open_page(width, height) as (page, errors):
        page.context.set_offline(True)
        page.goto((folder / "report.html").as_uri())
        screenshot(page, f"report-{width}")
        screenshot(page, f"report-{width}-whole", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        pictures = page.evaluate(
            "[...document.querySelectorAll('figure img')].map(i => [i.complete, i.naturalWidth])"
        )
        assert len(pictures) == 13
        for complete, natural in pictures:
            assert complete
            assert natural > 200
        assert errors == []


def test_interactive_charts_are_drawn_without_network(prepared, folder):
    with open_page(1280, 900) as (page, errors):
        page.context.set_offline(True)
        page.goto((folder / "interactive.html").as_uri())
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .trace').length > 10")
        screenshot(page, "interactive", full_page=True)
        names = page.evaluate("document.querySelector('.js-plotly-plot').data.map(t => t.name)")
        drawn = page.evaluate("document.querySelector('.js-plotly-plot').data.map(t => [t.x[0], t.y[0]])")
        assert errors == []
    held = {run.info.run_name: [] for run in map(prepared.client.get_run, prepared.run_ids)}
    for run in map(prepared.client.get_run, prepared.run_ids):
        metrics = run.data.metrics
        held[run.info.run_name].append((1000 * metrics["total/wire_gb"], 100 * metrics["eval/accuracy"]))
    assert len(names) == 6  # a setting for each rule
    for name, point in zip(names, drawn, strict=True):
        assert any(tuple(point) == pytest.approx(other) for other in held[name])
