"""Whoever can write into a store can name things; names stay texts wherever they are shown."""

import csv
import io
import re
from dataclasses import replace
from typing import Any

import mlflow_data
import pictures
import pytest
from html_page import Page
from rich.console import Console

from taugrad.dashboards import gallery, report
from taugrad.dashboards.runs import all_runs, compared_runs
from taugrad.dashboards.table import render
from taugrad.platform.spec import SpecError
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import find_experiment

SERVER = "http://mlflow.example:5000"
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "' onmouseover='alert(4)",
    "$x$ $\\undefined{$ and $",
    "=cmd|' /C calc'!A0",
    "[click](javascript:alert(5)) | `code` <b>",
    "a\x1b]0;title\x07\x1b[2Jb\u202ec",
    "{{ 7 * 7 }} {% raw %} %{x} --> ]]>",
)
HARMLESS = tuple(f"name {i}" for i in range(len(HOSTILE)))


def give(client: Any, experiment_id: str, runs: list[str], search: str, given: tuple[str, ...]) -> None:
    """Names runs, their metric, papers and search."""
    label = replace(ACCURACY, label=given[0], unit=given[4][:12]).to_json()
    for run, name in zip(runs, given, strict=True):
        client.set_tag(run, "mlflow.runName", name)
        client.set_tag(run, names.TAG_PAPER, name)
    for run in client.search_runs([experiment_id]):
        if run.info.run_id != search:
            client.set_tag(run.info.run_id, names.TAG_METRIC, label)
    client.set_tag(search, names.TAG_SEARCH, given[1])


@pytest.fixture(scope="module")
def reports(prepared, tmp_path_factory):
    """Folders of two of one experiment, with harmless names, and then with hostile ones; and its id."""
    client, runs, folders = prepared.client, [], []
    for i in range(len(HOSTILE)):  # methods of other kinds, so that each is among those that figures show
        chain, density, accuracy = mlflow_data.CHAINS[i % len(mlflow_data.CHAINS)]
        spec = mlflow_data.spec_of(chain, "an experiment", seed=i // len(mlflow_data.CHAINS))
        runs.append(mlflow_data.write_run(client, spec, density, accuracy))
    search, _ = mlflow_data.write_search(client, "an experiment", "tau", trials=3)
    experiment_id = client.get_run(search).info.experiment_id
    hostile = '"><img src=x onerror=alert(0)> $x$ $\\y$'
    for experiment, given in (("an experiment", HARMLESS), (hostile, HOSTILE)):
        client.rename_experiment(experiment_id, experiment)
        give(client, experiment_id, runs, search, given)
        folders.append(tmp_path_factory.mktemp("report"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gallery.Picture, "_png", pictures.drawn if given is HARMLESS else pictures.once)
            report.write_report(client, experiment, experiment_id, folders[-1], SERVER)
    return *folders, experiment_id


@pytest.fixture
def harmless(reports):
    return reports[0]


@pytest.fixture
def hostile(reports):
    return reports[1]


@pytest.mark.parametrize("name", ["report.html", "interactive.html"])
def test_names_add_no_element_and_no_attribute(hostile, harmless, name):
    """The same experiment with other names has the same page but for its texts."""
    bad, good = (Page(folder / name) for folder in (hostile, harmless))
    assert len(good.elements) > 20
    assert bad.elements == good.elements


def test_the_report_runs_nothing_and_leads_nowhere_else(hostile):
    text = (hostile / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    running = {"script", "iframe", "object", "embed", "base", "form", "link"}
    assert not {tag for tag, _ in page.elements} & running
    assert not [name for _, names in page.elements for name in names if name.startswith("on")]
    assert not re.search(r"@import|url\(", text)
    assert page.links
    assert all(link.startswith(f"{SERVER}/#/experiments/") for link in page.links)
    assert len(page.loaded) >= 20
    assert all(picture.startswith("data:image/png;base64,") for picture in page.loaded)
    assert "alert(0)" in page.text  # the experiment's name is there, as a text


def test_formulas_in_names_take_no_figure_away(hostile, harmless):
    """Matplotlib would read what stands between dollars, and fail where it cannot."""
    shown = [sorted(path.name for path in folder.glob("figures/*")) for folder in (hostile, harmless)]
    assert shown[0] == shown[1]
    assert len(shown[1]) > 10


def test_charts_show_names_as_texts(hostile):
    page = (hostile / "interactive.html").read_text(encoding="utf-8")
    # Plotly takes some HTML in names and titles; JSON may write `<` as \u003c.
    for payload in ("img src=x", "script\\u003ealert", "script>alert", "svg onload"):
        assert f"\\u003c{payload}" not in page
        assert f"<{payload}" not in page
    assert "&lt;script" in page.replace("\\u0026", "&")


def test_tables_are_texts(hostile):
    for name in ("runs.md", "methods.md"):
        text = (hostile / name).read_text(encoding="utf-8")
        assert "<" not in text
        assert "](" not in text.replace("\\](", "")
        widths = {line.replace("\\|", "").count("|") for line in text.splitlines()}
        assert len(widths) == 1, name
    cells = [row[0] for row in csv.reader((hostile / "runs.csv").open(encoding="utf-8"))]
    assert "'=cmd|' /C calc'!A0" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


def test_a_terminal_gets_no_orders(prepared, reports):
    runs = compared_runs(all_runs(prepared.client, reports[2]))
    screen = io.StringIO()
    Console(file=screen, width=300, force_terminal=False).print(render(runs))
    shown = screen.getvalue()
    assert "title" in shown
    assert all(character.isprintable() for line in shown.splitlines() for character in line)
    prepared.client.create_experiment(HOSTILE[7])
    with pytest.raises(SpecError) as refused:
        find_experiment(prepared.client, "x")
    assert str(refused.value).isprintable()
