"""The report says what MLflow holds, on one page that needs nothing else."""

import csv
import io
import math
import re
from typing import Any

import mlflow_data
import numpy as np
import pictures
import pytest
from html_page import Page

from taugrad.cli import main
from taugrad.dashboards import gallery, histories, report
from taugrad.platform.spec import SpecError
from taugrad.platform.tracking.store import start_run

SERVER = "http://mlflow.example:5000"


@pytest.fixture(scope="module")
def folder(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery.Picture, "_png", pictures.once)  # test_report_browser has both
        report.write_report(prepared.client, prepared.experiment, prepared.experiment_id, folder, SERVER)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def finals(prepared: Any) -> list[dict[str, Any]]:
    runs = [prepared.client.get_run(run_id) for run_id in prepared.run_ids]
    return [{**run.data.params, **run.data.metrics, "id": run.info.run_id} for run in runs]


def test_the_first_words_are_the_answer(prepared, page):
    """Worked out again from MLflow: least bytes among the settings within half a point."""
    runs = finals(prepared)
    settings: dict[tuple, list[dict[str, Any]]] = {}
    for run in runs:
        key = (run["compressor.kind"], run.get("compressor.tau"), run.get("compressor.floor"))
        settings.setdefault(key, []).append(run)

    def mean(key: tuple, metric: str) -> float:
        return sum(run[metric] for run in settings[key]) / len(settings[key])

    base = ("none", None, None)
    allowed = [
        key for key in settings
        if key != base and mean(key, "eval/accuracy") >= mean(base, "eval/accuracy") - 0.005 - 1e-12
    ]  # fmt: skip
    best = min(allowed, key=lambda key: mean(key, "total/wire_gb"))
    ratio = mean(base, "total/wire_gb") / mean(best, "total/wire_gb")
    heading = re.search(r"<h1>(.*?)</h1>", page)
    times = re.search(r"sends ([\d,.]+) times less than 16 bits", heading[1])
    assert float(times[1].replace(",", "")) == pytest.approx(ratio / 2, rel=0.01)
    assert heading[1].startswith(f"{best[0]} at tau {float(best[1]):g} ")
    assert f"at {100 * mean(best, 'eval/accuracy'):.2f}% accuracy" in heading[1]
    assert f"Without compression: {100 * mean(base, 'eval/accuracy'):.2f}%" in Page(page).words


def test_all_figures_are_there(page, folder):
    expected = {
        "accuracy_by_setting", "accuracy_against_mb", "fraction_per_iteration", "kept_back", "bits_per_epoch",
        "accuracy_by_floor", "speed_and_compression", "where_time_goes", "steps_of_workers",
        "send_time_by_method", "gradient_percentiles", "zeros_by_layer",
    }  # fmt: skip
    assert set(re.findall(r'<figure id="(\w+)"', page)) == expected
    for name in expected:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_tables_hold_what_mlflow_holds(prepared, folder):
    table = list(csv.DictReader(io.StringIO((folder / "methods.csv").read_text())))
    by_id = {run["id"]: run for run in finals(prepared)}
    seen = [run_id for row in table for run_id in row["runs"].split()]
    assert sorted(seen) == sorted(prepared.run_ids)
    for row in table:
        runs = [by_id[run_id] for run_id in row["runs"].split()]
        for column, metric, factor in (
            ("accuracy_percent", "eval/accuracy", 100),
            ("paper_gb", "total/paper_gb", 1),
            ("accuracy_percent_per_paper_gb", "total/accuracy_per_gb", 1),
            ("wire_gb", "total/wire_gb", 1),
            ("seconds", "total/seconds", 1),
        ):
            expected = factor * sum(run[metric] for run in runs) / len(runs)
            assert float(row[column]) == pytest.approx(expected)


def test_nothing_finished_is_said(prepared, tmp_path):
    client = prepared.client
    experiment_id = client.create_experiment("empty")
    with pytest.raises(SpecError, match=r"EXPERIMENT 'empty': no run has .*\(there are none yet\)"):
        report.write_report(client, "empty", experiment_id, tmp_path, SERVER)
    for status in ("FAILED", "FAILED", "RUNNING"):
        run_id = start_run(client, mlflow_data.spec_of("none", "empty"))
        if status != "RUNNING":
            client.set_terminated(run_id, status=status)
    with pytest.raises(SpecError, match=r"no run has finished .*\(2 failed, 1 running\)"):
        report.write_report(client, "empty", experiment_id, tmp_path / "new" / "folder", SERVER)
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_a_scheme_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"--server mlflow\.example:5000: must begin with http"):
        report.report("compared", tmp_path, "mlflow.example:5000")


def test_histories_are_those_that_mlflow_returns(prepared):
    """With NaN, infinities, and several values at one step, the last of which was logged last."""
    client = prepared.client
    run_id = client.create_run(client.create_experiment("histories")).info.run_id
    values = [(1, 0.5), (3, math.nan), (2, math.inf), (2, -1e300), (2, 7.0), (4, -math.inf)]
    mlflow_data.log(client, run_id, [("a/b", value, step) for step, value in values[:3]])
    for later, (step, value) in enumerate(values[3:]):
        client.log_metric(run_id, "a/b", value, timestamp=1_800_000_000_000 - later, step=step)
    wanted = {run_id: ["a/b", "missing"]}
    local = histories.histories(client, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histories, "_local_points", lambda *_: None)  # as of a server
        remote = histories.histories(client, wanted)
    assert list(local[run_id]) == list(remote[run_id]) == ["a/b"]
    for ours, theirs in zip(local[run_id]["a/b"], remote[run_id]["a/b"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert local[run_id]["a/b"][0].tolist() == [1, 2, 2, 2, 3, 4]
    assert local[run_id]["a/b"][1][-1] == -math.inf


def test_the_command(prepared, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gallery.Picture, "_png", pictures.drawn)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", prepared.uri)
    assert main(["report", "searched", "-o", str(tmp_path / "new" / "folder")]) == 0
    assert str(tmp_path / "new" / "folder" / "report.html") in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    assert main(["report", "searched", "-o", str(tmp_path / "file")]) == 2
    assert "-o " in capsys.readouterr().err
