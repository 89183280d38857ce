"""A trial in this process, with a user's own training in place of taugrad's."""

import sys

import pytest
from mlflow.tracking import MlflowClient

from taugrad import cli
from taugrad.platform.exit_codes import OK
from taugrad.platform.launching import undelivered
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.search import trial
from taugrad.search.objective import Objective, TrialOutcome
from taugrad.search.trial import StoreUnavailable, Task, TrialContext, run_task

MINE = """
def curve(spec):
    for epoch in range(1, spec.training.epochs + 1):
        yield 0.1 * epoch + 0.01 * spec.seed, 1000.0 * epoch
"""


@pytest.fixture
def here(tmp_path, monkeypatch, uri):
    (tmp_path / "mine_of_test_trial.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield TrialContext(uri, "parent", Objective("front", ACCURACY), "mine_of_test_trial:curve")
    sys.modules.pop("mine_of_test_trial", None)


def task(seeds=(0, 1), **more) -> Task:
    specs = [RunSpec.model_validate({"seed": seed, "training": {"epochs": 2}}) for seed in seeds]
    return Task(number=4, label="trial 4", specs=[spec.model_dump_json() for spec in specs], **more)


def test_every_epoch_is_judged_by_the_bytes_of_a_full_training(here):
    reports = []
    run_task(task(), here, reports.append)
    assert [report["evaluation"] for report in reports] == [1, 2, 0, 0, 0, 0]
    assert [report["full"] for report in reports] == [False] * 5 + [True]
    assert [report["spent_bytes"] for report in reports] == [1000, 2000, 2000, 3000, 4000, 4000]
    assert [report["wire_bytes"] for report in reports[:2]] == [1000, 2000]
    assert reports[0]["objective_2"] == reports[1]["objective_2"] == pytest.approx(3.30103)
    last = reports[-1]
    assert last["objective_1"] == pytest.approx(0.205 - 0.005)  # two seeds: mean - |difference| / 2
    client = MlflowClient(here.tracking_uri)
    run = client.get_run(last["training"]["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == "parent"
    assert run.data.tags["taugrad.trial"] == "4"
    assert run.data.metrics["eval/accuracy"] == pytest.approx(0.21)


def test_what_the_store_does_not_take_is_kept_and_told_and_delivered(here, monkeypatch, tmp_path, capsys):
    def away(*_, **__):
        raise OSError("no store")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(undelivered, "_DELIVERY_S", 0.1)
    reports = []
    with monkeypatch.context() as patch:
        for call in ("log_batch", "set_terminated"):
            patch.setattr(MlflowClient, call, away)
        # The start of a run logs params in a batch.
        patch.setattr(trial, "start_run", lambda client, *_, **__: client.create_run("0").info.run_id)
        run_task(task(seeds=(0,)), here, reports.append)
    last = reports[-1]
    assert last["full"]
    metrics, end = last["notices"][-2:]
    assert metrics.startswith("MLflow did not take 4 metrics; they are in ")
    assert end.startswith("MLflow does not answer (no store): ")
    file = end.partition("taugrad deliver ")[2]
    assert metrics.endswith(f"taugrad deliver {file}")
    assert cli.main(["deliver", file]) == OK
    run_id = last["training"]["run_id"]
    assert capsys.readouterr().out == f"4 metrics delivered to run {run_id}, which is FINISHED\n"
    assert MlflowClient(here.tracking_uri).get_run(run_id).data.metrics["eval/accuracy"] == 0.2


def test_a_store_that_takes_no_run_is_no_fault_of_the_trial(here, monkeypatch):
    def away(*_, **__):
        raise OSError("no store")

    monkeypatch.setattr(MlflowClient, "create_run", away)
    with pytest.raises(StoreUnavailable, match="no store"):
        run_task(task(seeds=(0,)), here, lambda _: None)


def test_known_trainings_are_taken_over(here):
    first = RunSpec.model_validate({"seed": 0, "training": {"epochs": 2}}).fingerprint()
    known = {first: TrialOutcome(0.5, 7.0, run_id="earlier")}
    reports = []
    run_task(task(known=known), here, reports.append)
    assert reports[0]["training"]["run_id"] == "earlier"
    assert reports[0]["spent_bytes"] == 0
    assert [report["evaluation"] for report in reports] == [0] * 4
