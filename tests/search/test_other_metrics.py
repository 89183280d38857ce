"""Searches and `taugrad auto` where a loss counts: what a comparison of accuracies would get wrong."""

import csv
import io
import math
import statistics

import pytest
from finished import StandIn
from scipy import stats
from specs import digits
from trials import report, told

from taugrad.platform.tasks.metric import LOSS
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client
from taugrad.search.auto import FAILED, OK, Goal, run_auto
from taugrad.search.objective import Objective
from taugrad.search.outputs import front_csv
from taugrad.search.trial import Task, TrialContext, run_task

LANGUAGE = ("--task.kind", "language_model")


def train(progress, values, megabytes, tau=0.01):
    """A trial that ran in full, or with tau None the baseline, one value a seed."""
    at = {"compressor.kind": "wgt", "compressor.tau": tau}
    task = progress.begin(at) if tau else progress.begin_baseline()
    report(progress, task.number, values, megabytes)


def test_the_front_of_a_loss_is_low_and_a_lucky_seed_does_not_make_it(start):
    progress = start(*LANGUAGE, "--search.seeds", "3")
    assert progress.metric == LOSS
    train(progress, [1.93, 1.94, 1.95], 100, tau=None)
    train(progress, [2.00, 2.01, 2.02], 2, tau=0.01)
    train(progress, [1.80, 2.01, 2.19], 4, tau=0.02)  # the least loss of all is one seed's luck
    train(progress, [2.60, 2.61, 2.62], 1, tau=0.03)
    assert [point.number for point in progress.front] == [2, 0]
    lucky = progress.points[1]
    assert lucky.mean < progress.points[0].mean
    assert lucky.value == pytest.approx(lucky.mean + statistics.stdev([1.80, 2.01, 2.19]) / 3**0.5)
    rows = list(csv.DictReader(io.StringIO(front_csv(progress))))
    assert [float(row["loss_nats"]) for row in rows] == pytest.approx([1.94, 2.61, 2.01])
    assert [float(row["times_smaller"]) for row in rows] == [1, 100, 50]
    assert [float(row["times_smaller_than_16_bits"]) for row in rows] == [0.5, 50, 25]
    interval = stats.t.interval(0.95, 2, 2.01, statistics.stdev([2.00, 2.01, 2.02]) / 3**0.5)
    assert (float(rows[2]["loss_low_nats"]), float(rows[2]["loss_high_nats"])) == pytest.approx(interval)
    assert not any("accuracy" in name for name in rows[0])
    _, text = told(progress)
    assert "1.9852 to 2.0348" in text
    assert "Intervals: seeds (Student's t)\n" in text
    assert "accuracy" not in text
    assert "Train point 2, which sends least within 0.02 nats of the best one" in text


MINE = """
from taugrad.platform.tasks.builtin import ClassificationTask

class ByLoss(ClassificationTask):
    metrics = sorted(ClassificationTask.metrics, key=lambda metric: metric.name != "loss")
"""
BY_LOSS = {"kind": "custom", "factory": "mine_of_metrics:ByLoss"}


@pytest.fixture
def context(tmp_path, monkeypatch, uri):
    (tmp_path / "mine_of_metrics.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return TrialContext(uri, "parent", Objective("front", LOSS), None)


def test_a_training_by_iterations_reports_its_loss_at_each_evaluation(context):
    training = {"iterations": 5, "evaluate_every": 2, "batch_size": 64}
    spec = digits(training=training, task=BY_LOSS, compressor="strom(0.05)")
    task = Task(number=0, label="trial 0", specs=[spec.model_dump_json()])
    reports: list[dict] = []
    run_task(task, context, reports.append)
    assert [report["evaluation"] for report in reports] == [1, 2, 3, 0]
    assert [report["share"] for report in reports] == [0.4, 0.8, 1.0, 1.0]
    first, last = reports[0], reports[-1]
    assert first["objective_2"] == pytest.approx(math.log10(first["wire_bytes"] / 0.4))
    client = open_client(context.tracking_uri)
    run = client.get_run(last["training"]["run_id"])
    assert last["value"] == run.data.metrics["eval/loss"] == last["objective_1"]
    assert last["value"] != run.data.metrics["eval/accuracy"]
    assert last["training"]["examples"] == run.data.metrics["eval/examples"] > 0


# taugrad auto


@pytest.mark.usefixtures("context")
def test_auto_goes_by_densities_where_a_loss_counts(capsys, uri):
    # Less is better: 2.10 would be within the tolerance if a higher value were.
    losses = iter([1.94, 2.10, 1.95])
    trained = StandIn(uri, lambda _: {"eval/loss": next(losses), names.TOTAL_WIRE_GB: 0.002}, "FINISHED")
    spec = digits(task=BY_LOSS)
    assert run_auto(spec, "spec.yaml", Goal(None, None), trained) == OK
    text = capsys.readouterr().out
    assert "within 0.02 nats: strom(tau=allocate(density=0.03))" in text
    assert "measured: 0.0100 nats lost, and no interval: seeds were not repeated" in text
    assert "nats" in text
    assert "points" not in text
    assert run_auto(spec, "spec.yaml", Goal(None, 0.001), trained) == FAILED
    text = capsys.readouterr().out
    assert "no training lost 0.001 nats or less" in text
    assert "comes nearest, 0.0090 nats beyond that" in text
