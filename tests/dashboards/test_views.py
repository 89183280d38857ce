"""The prepared views: what is written, that it is written once, and what it says of the runs."""

import os
from typing import Any

import mlflow_data
import pytest

from taugrad.dashboards import prepare, serving, shared_view, views
from taugrad.dashboards.runs import all_runs
from taugrad.platform.spec import SpecError
from taugrad.platform.tracking import names


@pytest.fixture(scope="module")
def written(prepared):
    prepare.prepare(prepared.client, prepared.search_experiment_id)
    return prepare.prepare(prepared.client, prepared.experiment_id)


def tags(prepared: Any, experiment_id: str) -> dict[str, str]:
    result = prepared.client.get_experiment(experiment_id).tags
    return {key: value for key, value in result.items() if key.startswith("mlflow.sharedViewState.")}


def cards(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [card for card in state["compareRunCharts"] if not card["deleted"]]


def test_written_again_it_updates_and_does_not_double(prepared, written):
    before = tags(prepared, prepared.experiment_id)
    prepare.prepare(prepared.client, prepared.experiment_id)
    after = tags(prepared, prepared.experiment_id)
    assert before.keys() == after.keys() == {f"mlflow.sharedViewState.{views.COMPARISON_KEY}"}


def test_every_metric_is_in_a_card_or_left_out(prepared, written):
    """MLflow's UI adds a chart of its own for any metric that is in neither."""
    state = mlflow_data.read_view(prepared.client, prepared.experiment_id, views.COMPARISON_KEY)
    logged = {m for run in all_runs(prepared.client, prepared.experiment_id) for m in run.data.metrics}
    assert logged <= {card["metricKey"] for card in state["compareRunCharts"] if "metricKey" in card}


def test_a_search_has_a_view_of_its_trials_and_dimensions(prepared, written):
    key = views.search_key(prepared.parent)
    state = mlflow_data.read_view(prepared.client, prepared.search_experiment_id, key)
    assert state["searchFilter"] == f"tags.`mlflow.parentRunId` = '{prepared.parent}'"
    runs = prepared.client.search_runs([prepared.search_experiment_id], filter_string=state["searchFilter"])
    assert {run.info.run_id for run in runs} == set(prepared.trials)
    (parallel,) = [card for card in cards(state) if card["type"] == "PARALLEL"]
    assert parallel["selectedParams"] == [names.PARAM_RULE]
    assert parallel["selectedMetrics"][0] == "view/compressor.tau_log10"  # tau spans two powers of ten


def test_every_trial_of_a_search_over_methods_has_a_line():
    """MLflow draws a line only where a run has every axis; no trial has both a tau and a floor."""
    chains = ("none", "wgt(tau=0.01)", "wgt(tau=2)", "strom(tau=0.02) | golomb_rice",
              "strom(tau=5) | golomb_rice", "entropy(floor=2)", "entropy(floor=7)")  # fmt: skip
    trials = [mlflow_data.spec_of(chain, "search").flat() for chain in chains]
    state = views.search("parent", trials, {"view/compressor.tau_log10"})
    drawn = [card for card in cards(state) if card["type"] == "PARALLEL"]
    for params in trials[1:]:
        held = {*params, *(["view/compressor.tau_log10"] if "compressor.tau" in params else [])}
        axes = [{*card["selectedParams"], *card["selectedMetrics"]} for card in drawn]
        always = {names.TOTAL_WIRE_MB_LOG10, names.EVAL_ACCURACY}
        assert [axis for axis in axes if axis - always <= held and axis - always != {names.PARAM_RULE}]
    across = [card["xaxis"]["key"] for card in cards(state) if card["uuid"].startswith("taugrad-by-")]
    assert across == ["compressor.floor", "view/compressor.tau_log10"]


def test_a_model_of_500_layers_fits_without_its_layers(prepared):
    experiment_id = prepared.client.create_experiment("large")
    run = prepared.client.create_run(experiment_id)
    metrics = [
        (f"layer/blocks.{i}.attention.{os.urandom(6).hex()}/{what}", 0.5, 1)
        for i in range(500)
        for what in ("fraction", "tau", "grad_p50")
    ]
    mlflow_data.log(prepared.client, run.info.run_id, metrics)
    prepare.prepare(prepared.client, experiment_id)
    (value,) = tags(prepared, experiment_id).values()
    assert len(value) <= shared_view.MAX_TAG_LENGTH
    state = mlflow_data.read_view(prepared.client, experiment_id, views.COMPARISON_KEY)
    assert len(cards(state)) > 5


def test_the_command_prints_where_to_look(prepared, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", prepared.uri)
    monkeypatch.setattr("mlflow.__version__", "9.9.9")
    assert prepare.dashboard("searched") == 0
    said = capsys.readouterr().out
    assert "9.9.9 is not among the versions" in said
    assert f"mlflow server --backend-store-uri {prepared.uri} --host 127.0.0.1" in said
    for key in (views.COMPARISON_KEY, views.search_key(prepared.parent)):
        path = f"#/experiments/{prepared.search_experiment_id}/runs?viewStateShareKey={key}"
        assert f"http://127.0.0.1:5000/{path}&compareRunsMode=CHART" in said


def test_a_server_that_does_not_start_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(serving.sys, "executable", "/bin/false")
    server = serving.mlflow_server("sqlite:///mlflow.db", tmp_path / "log")
    with pytest.raises(SpecError, match="--serve: mlflow server ended with code 1"), server:
        pass
