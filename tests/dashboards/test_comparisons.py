"""Runs are compared only with runs that were trained alike, and rows that look alike are told apart."""

import csv

import mlflow_data
import pictures
import pytest
from html_page import Page
from mlflow_data import made_up

from taugrad.cli import main
from taugrad.dashboards import gallery, verdict
from taugrad.dashboards.groups import baseline, by_setting, comparisons
from taugrad.platform.tracking.store import open_client

EPOCHS, SEARCHED = "training.epochs", {"training.optimizer.kind": "sgd", "sync.mode": "simulated"}


def test_a_run_is_compared_with_the_baseline_of_as_many_epochs():
    runs = [made_up("none", 0.97, **{EPOCHS: "10"}), made_up("wgt", 0.96, **{EPOCHS: "10"})]
    runs += [made_up("none", 0.99, **{EPOCHS: "20"}), made_up("wgt", 0.985, **{EPOCHS: "20"})]
    first, second = comparisons(by_setting(runs))
    assert [first.name, second.name] == ["10 epochs", "20 epochs"]
    for comparison, lost in ((first, 1.0), (second, 0.5)):
        (compressed,) = (group for group in comparison.groups if not group.is_baseline)
        change = verdict.change(compressed, baseline(comparison.groups))
        assert change.lost == pytest.approx(lost)


def test_a_simulated_search_beside_real_trainings_has_its_own_baseline():
    """Its trial is 3 points better than its own baseline, and 22 worse than the trainings'."""
    trained = {"training.optimizer.kind": "adamw", "sync.mode": "allgather"}
    runs = [made_up("none", 0.95, seed, **trained) for seed in range(3)]
    runs += [made_up("wgt", 0.94, seed, **trained) for seed in range(3)]
    runs += [made_up("none", 0.70, **SEARCHED), made_up("wgt", 0.73, **SEARCHED)]
    first, second = comparisons(by_setting(runs))
    assert first.name == "real workers, optimizer adamw"
    assert second.name == "simulated workers, optimizer sgd"
    (trial,) = (group for group in second.groups if not group.is_baseline)
    assert verdict.change(trial, baseline(second.groups)).mean == pytest.approx(3.0)


def test_rate_momentum_and_sync_are_compared_and_named_where_rows_are_alike():
    bare = {"sync.mode": "allgather", "training.optimizer.lr": "0.1", "training.optimizer.momentum": "0.9"}
    local = {"sync.mode": "weights", "sync.every": "8"}
    runs = [made_up("none", 0.97, **bare), made_up("wgt", 0.96, **bare)]
    runs += [
        made_up("wgt", 0.95, **bare | {"training.optimizer.lr": "0.2"}),
        made_up("wgt", 0.94, **bare | local),
    ]
    (only,) = comparisons(by_setting(runs))
    assert only.name == ""
    settings = [group.setting for group in only.groups if not group.is_baseline]
    assert len(set(settings)) == 3
    assert [text for text in settings if "lr 0.2" in text]
    assert [text for text in settings if "weights" in text]


def test_the_best_of_equally_many_baselines_is_compared_with():
    runs = [made_up("none", value, **{"training.optimizer.lr": str(value)}) for value in (0.8, 0.9, 0.7)]
    assert baseline(by_setting(runs)).value.mean == pytest.approx(90)


def test_readmes_own_order_and_a_filter(tmp_path, monkeypatch, new_store, capsys):
    """Ten epochs of two methods, then twenty of one: no baseline is borrowed from another group."""
    monkeypatch.setattr(gallery.Picture, "_png", pictures.drawn)
    uri = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = open_client(uri)
    for chain, density, accuracy in mlflow_data.CHAINS[:2]:
        mlflow_data.write_run(client, mlflow_data.spec_of(chain, "quick"), density, accuracy)
    longer = mlflow_data.spec_of("wgt(tau=0.003)", "quick", workers={"count": 4})
    mlflow_data.write_run(client, longer, 0.1, 0.99)
    assert main(["report", "quick", "-o", str(tmp_path / "all")]) == 0
    rows = list(csv.DictReader((tmp_path / "all" / "methods.csv").open()))
    assert {row["group"] for row in rows} == {"2 workers", "4 workers"}
    (alone,) = [row for row in rows if row["group"] == "4 workers"]
    assert alone["accuracy_change_points"] == ""
    page = Page((tmp_path / "all" / "report.html").read_text()).words
    assert "1 more group of runs was trained differently" in page

    only = "params.workers.count = '2'"
    assert main(["report", "quick", "-o", str(tmp_path / "two"), "--filter", only]) == 0
    rows = list(csv.DictReader((tmp_path / "two" / "methods.csv").open()))
    assert [row["method"] for row in rows] == ["none", "wgt"]
    assert main(["dashboard", "quick", "--filter", only]) == 0
    experiment_id = client.get_experiment_by_name("quick").experiment_id
    assert mlflow_data.read_view(client, experiment_id, "taugradcomparison")["searchFilter"] == only
    none = ["report", "quick", "-o", str(tmp_path / "no"), "--filter"]
    assert main([*none, "epochs is 10"]) == 2
    assert "--filter 'epochs is 10': " in capsys.readouterr().err
    assert main([*none, "params.workers.count = '9'"]) == 2
    assert not (tmp_path / "no").exists()
