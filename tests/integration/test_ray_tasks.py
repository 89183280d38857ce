"""Images that Ray's tasks read: the same batches as those that workers read themselves, killed or not."""

import os

import pytest
from benchmarks.platform.faults.comparing import differences
from commands_on_ray import kill_a_worker
from image_files import write_tree
from stored import all_runs, client_of, outcome
from waiting import until

pytestmark = pytest.mark.ray

SPEC = """
experiment: images
name: {name}
data: {{kind: image_folder, path: task_images, size: 12, augment: true}}
model: {{kind: mlp, widths: [16]}}
training: {{epochs: 4, batch_size: 8, optimizer: {{lr: 0.02}}}}
compressor: {{kind: bgt, tau: 5e-3}}
checkpoint: {{interval: 7}}
workers: {{count: 2, cpus: {cpus}, max_restarts: {restarts}}}
"""
IMAGES = 80
"""Of each of three classes."""
ITERATIONS = 4 * 24
NOTICE = "crowded: workers hold all CPUs but 0, a task needs 1"
CHECKPOINTS = "taugrad-runs/*/iteration_*"


@pytest.mark.long
def test_killed_or_without_free_cpus_a_run_sees_the_same_images(one_ray):
    folder = one_ray.folder
    write_tree(folder / "task_images", dict.fromkeys("abc", IMAGES), height=14, width=16)
    cpus = len(os.sched_getaffinity(0)) / 2
    for name, share, restarts in (("killed", 0.5, 1), ("crowded", cpus, 0)):
        (folder / f"{name}.yaml").write_text(SPEC.format(name=name, cpus=share, restarts=restarts))
    before = set(folder.glob(CHECKPOINTS))
    command = one_ray.begin("train", "killed.yaml", "crowded.yaml")
    # A worker of the first run, as soon as it has two checkpoints.
    until(
        lambda: len({*folder.glob(CHECKPOINTS)} - before) >= 2,
        lambda: command.said,
        goes_on=lambda: command.runs,
    )
    kill_a_worker(command)
    code, said = command.wait(), command.said
    assert code == 0, said
    assert NOTICE in said, said
    assert ": going on from the last checkpoint" in said, said
    # Only where workers hold every CPU.
    assert said.count("examples themselves") + said.count("examples itself") == 1, said
    tags = [run.data.tags for run in all_runs(client_of(folder), "images")]
    assert [len(tag["taugrad.data"]) for tag in tags] == [64] * 2
    crowded = outcome(folder, "images", "crowded")
    assert crowded["status"] == "FINISHED"
    assert [step for step, _ in crowded["metrics"]["train/loss"]] == list(range(1, ITERATIONS + 1))
    # Every batch of the other one came through Ray's tasks, before the kill and after it.
    assert list(differences(outcome(folder, "images", "killed"), crowded)) == []
