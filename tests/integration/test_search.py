"""`taugrad search` as a user runs it: on Ray, in MLflow, killed and taken up again."""

import csv
import json
import subprocess
from collections import Counter
from math import log10
from pathlib import Path

import pytest
from stored import all_runs, client_of
from waiting import until

pytestmark = pytest.mark.ray

DIGITS = """
experiment: digits
data: {kind: digits}
model: {kind: mlp, widths: [16]}
training: {epochs: 2, batch_size: 64, optimizer: {lr: 0.1}}
sync: {mode: simulated}
compressor:
  choice:
    - {kind: wgt, tau: {log: [1e-4, 1e-1]}}
    - "strom(tau={'log': [1e-3, 1e-1]}) | golomb_rice"
"""
STAND_IN = """
import math, os, time
from pathlib import Path

HERE = Path(__file__).parent

def curve(spec):
    # The first trial that is stopped takes longer to end than Tune waits, which then gives the next one up.
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = "1"
    # On the front lies every tau at the one learning rate 0.01; elsewhere accuracy is lost.
    tau, lr = math.log10(spec.compressor.tau), math.log10(spec.training.optimizer.lr)
    if spec.compressor.kind == "bgt":
        raise RuntimeError("no such method\\nhere")
    try:
        for epoch in range(1, spec.training.epochs + 1):
            accuracy = 0.99 - 0.02 * (tau + 5) ** 2 / 4 - 0.05 * (lr + 2) ** 2
            yield accuracy * epoch / spec.training.epochs, 10 ** (3 - tau) * epoch
    except GeneratorExit:
        if not (HERE / "slow").exists():
            (HERE / "slow").touch()
            time.sleep(3)
        raise
"""
ON_STAND_IN = """
experiment: known
data: {kind: digits}
model: {kind: mlp}
training: {epochs: 4, optimizer: {lr: {log: [1e-4, 1]}}}
compressor: {kind: {choice: [wgt, qgt, bgt]}, tau: {log: [1e-5, 1e-1]}}
search: {trials: 40, evaluate: "stand_in:curve", baseline: false, pruning: asha, sampler: tpe}
"""


def runs_of(folder: Path, name: str):
    client = client_of(folder)
    runs = all_runs(client, name)
    parents = [run for run in runs if "taugrad.search" in run.data.tags]
    return client, parents, [run for run in runs if "mlflow.parentRunId" in run.data.tags]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def hypervolume(points: list[tuple[float, float]], worst: tuple[float, float]) -> float:
    """The area that (accuracy, log10 bytes) points dominate, up to the worst values."""
    area, reached = 0.0, worst[0]
    for accuracy, magnitude in sorted(points, key=lambda p: p[1]):
        if accuracy > reached:
            area += (accuracy - reached) * (worst[1] - magnitude)
            reached = accuracy
    return area


def test_a_known_front_is_found_and_failing_trials_do_not_stop_the_search(one_ray):
    (one_ray.folder / "stand_in.py").write_text(STAND_IN)
    (one_ray.folder / "known.yaml").write_text(ON_STAND_IN)
    code, said = one_ray("search", "known.yaml", "--allow-custom")
    assert code == 0, said
    folder = one_ray.folder / "taugrad-runs" / "searches" / "known" / "known"
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    begun = Counter(event["number"] for event in events if event["event"] == "trial")
    assert sorted(begun.values()) == [1] * 39 + [2]
    assert said.count("  begins\n") == 41
    trials, front = rows(folder / "trials.csv"), rows(folder / "front.csv")
    endings = Counter(row["ending"] for row in trials)
    assert sum(endings.values()) == 40
    assert endings["failed"] > 0
    assert endings["pruned"] > 0
    failed = [row for row in trials if row["ending"] == "failed"]
    assert {row["compressor.kind"] for row in failed} == {"bgt"}
    assert {row["reason"] for row in failed} == {"RuntimeError: no such method here"}

    full = {row["trial"] for row in trials if row["ending"] == "full"}
    assert {row["trial"] for row in front} <= full
    results = [(float(p["accuracy_percent"]) / 100, 6 + log10(float(p["wire_mb"]))) for p in front]
    taus = [-5 + 4 * i / 1000 for i in range(1001)]
    known = [(0.99 - 0.02 * (tau + 5) ** 2 / 4, 3 - tau + log10(4)) for tau in taus]
    worst = (0.9, 3 + 5 + log10(4))
    assert hypervolume(results, worst) > 0.9 * hypervolume(known, worst)

    client, (parent,), children = runs_of(one_ray.folder, "known")
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.data.tags["taugrad.trial"] for run in children} == {row["trial"] for row in trials}
    by_ending = {"full": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}
    for run in children:
        assert run.info.status == by_ending[run.data.tags["taugrad.ending"]]
    artifacts = {Path(file.path).name for file in client.list_artifacts(parent.info.run_id, "search")}
    assert {"front.csv", "trials.csv", "front.png", "front"} <= artifacts

    code, said = one_ray("search", "known.yaml", "--allow-custom")
    assert code == 0, said
    assert "40 trials, 40 of them done" in said
    assert rows(folder / "front.csv") == front
    assert len(runs_of(one_ray.folder, "known")[2]) == len(children)


@pytest.mark.long
def test_a_search_that_was_killed_goes_on_and_its_points_can_be_trained(one_ray, environment, command):
    (one_ray.folder / "digits.yaml").write_text(DIGITS + "search: {trials: 5, seed: 3}")
    folder = one_ray.folder / "taugrad-runs" / "searches" / "digits" / "digits"
    journal = folder / "journal.jsonl"
    with (one_ray.folder / "killed.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, "search", "digits.yaml"], cwd=one_ray.folder, env=environment, stdout=log, stderr=log
        )
    until(
        lambda: journal.exists() and journal.read_text().count('"event":"end"') >= 3,  # one is the baseline's
        (one_ray.folder / "killed.txt").read_text,
        goes_on=lambda: process.poll() is None,
    )
    process.kill()  # what it had started must not be in the way of the next start
    process.wait()
    before = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    code, said = one_ray("search", "digits.yaml")
    assert code == 0, said
    assert "of them done" in said

    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert events[: len(before)] == before
    ends = [event["number"] for event in events if event["event"] == "end"]
    assert sorted(ends) == [-1, 0, 1, 2, 3, 4]
    told = [event for event in events if event["event"] == "training"]
    trained = [event["fingerprint"] for event in told]
    assert len(set(trained)) == 6
    # One told twice, since the kill fell between it and its trial's end, is the same training.
    assert len({json.dumps(event) for event in told}) == 6
    assert len(told) <= 6 + 2  # two trials at a time
    _, (parent,), children = runs_of(one_ray.folder, "digits")
    assert parent.info.status == "FINISHED"
    assert {run.info.status for run in children} <= {"FINISHED", "KILLED"}
    finished = Counter(
        run.data.tags["taugrad.spec_hash"] for run in children if run.info.status == "FINISHED"
    )
    assert finished == Counter(set(trained))  # each was trained once

    front = rows(folder / "front.csv")
    (point,) = [row for row in front if row["point"] == "1"]
    code, said = one_ray("search", "digits.yaml", "--pick", "1")
    assert code == 0, said
    client, _, children = runs_of(one_ray.folder, "digits")
    nested = {run.info.run_id for run in children} | {parent.info.run_id}
    (run,) = [run for run in all_runs(client, "digits") if run.info.run_id not in nested]
    assert run.info.status == "FINISHED"
    assert 100 * run.data.metrics["eval/accuracy"] == pytest.approx(float(point["accuracy_percent"]))
    assert 1000 * run.data.metrics["total/wire_gb"] == pytest.approx(float(point["wire_mb"]), rel=1e-9)

    code, said = one_ray("search", "digits.yaml", "--pick", "99")
    assert code == 2
    assert "--pick 99: the front of search digits has points 1 to" in said


@pytest.mark.long
def test_trials_are_ray_train_runs_unless_the_spec_simulates(one_ray):
    text = DIGITS.replace("sync: {mode: simulated}", "workers: {count: 2, cpus: 0.5}")
    text = text.replace("experiment: digits", "experiment: real")
    (one_ray.folder / "real.yaml").write_text(text + "search: {trials: 1, baseline: false, seed: 1}")
    code, said = one_ray("search", "real.yaml")
    assert code == 0, said
    _, (parent,), children = runs_of(one_ray.folder, "real")
    assert len(children) == 1
    assert {run.info.status for run in (*children, parent)} == {"FINISHED"}
    for run in children:
        folder = one_ray.folder / "taugrad-runs" / run.info.run_id
        assert Path(run.data.tags["taugrad.checkpoints"]) == folder
        assert list(folder.glob("iteration_*"))
        assert run.data.params["workers.count"] == "2"
