"""Where a loss counts: made-up runs of which a naive comparison, or one of accuracies, would be wrong."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pictures
import pytest
from finished import leave
from html_page import Page
from mlflow_data import made_up, spec_of

from taugrad.dashboards import gallery, report, statements, verdict
from taugrad.dashboards.groups import by_setting, comparisons
from taugrad.dashboards.report_page import Report, render
from taugrad.dashboards.runs import RunHistory, all_runs
from taugrad.dashboards.searches import searches
from taugrad.platform.tasks.claims import difference
from taugrad.platform.tasks.metric import ACCURACY, LOSS, Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client, open_experiment

BLEU = Metric("bleu", "BLEU", digits=1, more_is_better=True)
METRICS = [ACCURACY, LOSS, BLEU]


run = partial(made_up, metric=LOSS)


def page_of(runs: list[RunHistory]) -> str:
    return Page(render(Report("e", "", comparisons(by_setting(runs)), [], 0, datetime.now(UTC), None))).words


# Intervals and claims


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize(
    ("worse_by", "kind"), [(-3.0, "gained"), (0.0, "kept"), (0.7, "lost"), (3.0, "lost")]
)
def test_a_claim_follows_the_metrics_direction(metric, worse_by, kind):
    """Moved by so many margins: what is gain for an accuracy is loss for a loss."""
    theirs = {str(seed): 0.9 + seed / 1e4 for seed in range(5)}
    margin = metric.margin(0.9) / metric.scale
    mine = {s: v - metric.sign * margin * (worse_by + (int(s) - 2) / 1e2) for s, v in theirs.items()}
    got = difference(mine, theirs, 10**9, metric)
    assert got.kind == kind
    assert got.lost == pytest.approx(worse_by * got.margin, abs=0.01 * got.margin)
    assert got.most_lost >= max(0.0, got.lost)
    said = statements.sentence(got)
    assert ("points" in said) == (metric == ACCURACY)
    assert ("nats" in said) == (metric == LOSS)


def test_a_lucky_seed_is_no_gain():
    """The mean is lower by 0.1 nats, all of it one seed's: naively the best of all."""
    runs = [run("none", 1.94 + s / 1e3, s) for s in range(3)]
    runs += [run("wgt", value, s) for s, value in enumerate((1.94, 1.95, 1.61))]
    change = verdict.change(by_setting(runs)[1], by_setting(runs)[0])
    assert change.mean < -0.1
    assert change.kind == "open"
    said = statements.sentence(change)
    assert said.startswith("No loss found, but a loss of up to ")
    assert float(re.search(r"up to ([\d.]+) nats", said)[1]) > 0.3  # type: ignore[index]


# Which setting is best


def test_the_headline_takes_the_low_loss_and_counts_against_16_bits():
    """A naive maximum would take 2.9 nats at 900 times."""
    runs = [run("none", 1.94 + s / 1e3, s) for s in range(3)]
    runs += [run("wgt", value, s, 50) for s, value in enumerate((1.941, 1.940, 1.944))]
    runs += [run("bgt", 2.9 + s / 1e3, s, 900) for s in range(3)]
    groups = by_setting(runs)
    answer = verdict.headline(groups)
    assert answer.group.rule == "wgt"
    assert [group.rule for group in verdict.representatives(groups)] == ["none", "bgt", "wgt"]
    text = page_of(runs)
    assert "wgt at tau 50 sends 25 times less than 16 bits, at a test loss of 1.9417 nats" in text
    assert "50 times less than float32" in text
    assert "25× smaller than 16 bits" in text
    assert "No worse: +0.0007 nats" in text
    assert "accura" not in text.lower()
    of_paper = [replace(run, paper="strom") for run in runs]
    assert "wgt at tau 50 sends 50 times less than float32" in page_of(of_paper)


# From MLflow


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, new_store):
    """An experiment with runs of two tasks, by iterations, and a search by loss: a client and its id."""
    client = open_client(new_store(tmp_path_factory.mktemp("store")))
    language = {"task": {"kind": "language_model"}, "training": {"iterations": 600, "evaluate_every": 100}}
    parent = client.create_run(open_experiment(client, "mixed"), tags={names.TAG_SEARCH: "s"}).info.run_id

    def write(
        chain: str, ratio: float, status: str = "FINISHED", trial: str = "", seed: int = 0, **metrics: float
    ):
        fields = {} if "accuracy" in metrics else language
        tags = {"mlflow.parentRunId": parent, names.TAG_TRIAL: trial} if trial else {}
        values = {f"eval/{name}": value for name, value in metrics.items()}
        values |= {"total/wire_gb": 1 / ratio, "total/compression_ratio": ratio, "eval/examples": 500.0}
        values["epoch"] = 4.0 if "accuracy" in metrics else 0.6
        leave(client, spec_of(chain, "mixed", seed=seed, **fields), values, status, **tags)

    for seed in range(2):
        write("none", 1, seed=seed, loss=1.94 + seed / 100)
        write("wgt(tau=0.1)", 100, seed=seed, loss=1.95 + seed / 100)
    write("none", 1, accuracy=0.9, loss=0.4)
    trials = ((0.2, 2.0, "FINISHED"), (0.3, 1.9, "KILLED"), (0.4, 2.5, "FINISHED"))
    for trial, (tau, loss, status) in enumerate(trials):
        write(f"wgt(tau={tau})", 1000 * tau, status, str(trial), loss=loss)
    client.set_terminated(parent)
    return client, client.get_experiment_by_name("mixed").experiment_id


def test_figures_are_about_one_metric_and_other_runs_are_a_group(mixed, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery.Picture, "_png", pictures.drawn)
    client, experiment_id = mixed
    text = Page(report.write_report(client, "mixed", experiment_id, tmp_path, None)).words
    assert "1 more group of runs was trained differently" in text
    assert "judged by accuracy" in text
    assert "accuracy_percent" in (tmp_path / "methods_accuracy.csv").read_text()
    assert "1 more run did not train to the end" in text  # by iterations, and epoch 0.6 of 4 is no sign of it
    assert "at tau 0.1 sends 50 times less than 16 bits, at a test loss of 1.9550 nats" in text
    assert "Without compression: 1.9450 nats" in text
    assert (tmp_path / "figures" / "loss_by_setting.png").exists()
    assert not list((tmp_path / "figures").glob("accuracy*"))
    assert "loss_nats" in (tmp_path / "runs.csv").read_text()


def test_a_searchs_front_is_read_back_by_its_loss(mixed):
    """2.5 sends least and 2.0 loses least: both are on the front. By accuracy the first alone would be."""
    client, experiment_id = mixed
    (search,) = searches(all_runs(client, experiment_id)).values()
    assert search.metric == LOSS
    assert [(point.value, point.place) for point in search.points] == [(2.5, 1), (2.0, 2)]
    assert [point.value for point in search.stopped] == [1.9]
