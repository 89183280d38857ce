"""Which runs the view of a large experiment shows."""

from collections import Counter

import pytest
from mlflow.tracking import MlflowClient
from mlflow_data import made_up, read_view

from taugrad.dashboards import prepare, views
from taugrad.dashboards.prepare import SHOWN, selected
from taugrad.dashboards.runs import RunHistory
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client

SEEDS = 3


def many(settings: dict[str, int]) -> list[RunHistory]:
    """So many settings of each rule, most bytes first; the third of each is the best."""
    return [
        made_up(rule, 0.99 if tau == 3 else 0.9, seed, tau)
        for rule, count in settings.items()
        for tau in range(1, count + 1)
        for seed in range(SEEDS)
    ]


def test_of_many_every_rule_shows_its_best_and_its_extremes():
    sizes = {"none": 1, "wgt": 60, "bgt": 60, "topk": 5}
    shown = selected(many(sizes))
    assert len({run.run_id for run in shown}) == len(shown) == SHOWN
    taus = {rule: [run.tau for run in shown if run.rule == rule] for rule in sizes}
    assert Counter(run.rule for run in shown) == {"none": 1, "wgt": 17, "bgt": 17, "topk": 5}
    for rule in ("wgt", "bgt", "topk"):
        assert {1, 3, sizes[rule]} <= set(taus[rule])
        distances = [b - a for a, b in zip(sorted(taus[rule]), sorted(taus[rule])[1:], strict=False)]
        assert max(distances) <= 2 + sizes[rule] / len(taus[rule])
    assert len({(run.rule, run.tau) for run in shown}) == SHOWN  # one run of a setting


@pytest.fixture
def client(tmp_path, new_store):
    return open_client(new_store(tmp_path))


def write(client: MlflowClient, experiment_id: str, run: RunHistory) -> None:
    made = client.create_run(
        experiment_id, tags={"mlflow.runName": run.run_id, names.TAG_METRIC: run.metric.to_json()}
    )
    for key, value in run.params.items():
        client.log_param(made.info.run_id, key, value)
    for key, value in run.finals.items():
        client.log_metric(made.info.run_id, key, value)
    client.set_terminated(made.info.run_id)


def test_the_view_filters_by_the_tag_of_those_that_are_shown(client, monkeypatch):
    monkeypatch.setattr(prepare, "MOST_RUNS", 9)
    experiment_id = client.create_experiment("large")

    def shown(only: str = "") -> tuple[str, set[str]]:
        (view, *_) = prepare.prepare(client, experiment_id, only)
        state = read_view(client, experiment_id, views.COMPARISON_KEY)
        runs = client.search_runs([experiment_id], state["searchFilter"], max_results=1000)
        return view.notice, {result.info.run_name for result in runs}

    runs = many({"none": 1, "wgt": 2})
    for run in runs:
        write(client, experiment_id, run)
    assert shown() == ("", {run.run_id for run in runs})

    more = many({"topk": 2})
    for run in more:
        write(client, experiment_id, run)
    notice, names_ = shown()
    assert notice.startswith("5 of 15 runs")
    assert names_ == {run.run_id for run in selected([*runs, *more])}
    assert len(names_) == 5

    (gone, *_) = client.search_runs([experiment_id], "attributes.run_name = 'topk 1 0'")
    client.delete_run(gone.info.run_id)  # then its sister stands for its setting
    assert shown()[1] == names_ - {"topk 1 0"} | {"topk 1 1"}
    bare = "params.`compressor.kind` = 'none'"
    assert shown(bare)[1] <= {run.run_id for run in runs if run.rule == "none"}
    more = many({"sign": 4})
    for run in more:
        write(client, experiment_id, run)
    wanted = shown("params.`compressor.kind` = 'sign'")[1]
    assert wanted
    assert wanted <= {run.run_id for run in more}
