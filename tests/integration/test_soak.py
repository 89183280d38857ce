"""One run that much happens to ends as one that nothing happens to; `make soak` is the long form of it."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from benchmarks.platform.faults.commands import HostedCommand, named
from benchmarks.platform.faults.comparing import differences
from benchmarks.platform.faults.kinds import SmallDisk, damage
from needs import missing
from stored import outcome
from waiting import until

pytestmark = pytest.mark.ray

DISK_BYTES = 64 * 2**20


@pytest.fixture
def disk(one_ray, new_store):
    """Where a run keeps everything."""
    folder = one_ray.folder / "small"
    folder.mkdir()
    try:
        made = SmallDisk(folder, DISK_BYTES)
    except subprocess.CalledProcessError as error:
        missing(f"needs root, to mount a small disk: {error.stderr.strip()}")
    new_store(folder)
    yield made
    made.close()


class Struck:
    """A run to which things happen while it goes on; all that it keeps lies in one folder."""

    def __init__(self, runs: Any, folder: Path) -> None:
        self.folder, self._runs, self._seen = folder, runs, set[Path]()
        self.command = self.train(runs.write("struck", f"{folder.name}/taugrad-runs", restarts=1))

    def train(self, *arguments: str) -> HostedCommand:
        store = {"MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db"}
        return self._runs.ray.begin("train", *arguments, "--allow-custom", variables=store)

    def next_checkpoint(self) -> bool:
        """Waits for another than the last time; none comes where the run has ended."""
        until(lambda: not self.command.runs or self.checkpoints() - self._seen)
        self._seen |= self.checkpoints()
        return self.command.runs

    @contextmanager
    def held(self) -> Iterator[list[psutil.Process]]:
        """Those that train. No iteration begins meanwhile: to find them can take as long as a run."""
        self._runs.hold.touch()
        try:
            yield named(self.command.family(), "RayTrainWorker")
        finally:
            self._runs.hold.unlink()

    def checkpoints(self) -> set[Path]:
        return {path.parent for path in self.folder.glob("taugrad-runs/*/iteration_*/manifest.json")}


def test_a_run_that_much_happens_to_ends_as_one_that_nothing_happens_to(disk, undisturbed):
    whole = outcome(undisturbed.ray.folder, "soak", "wgt")
    whole["metrics"] = {k: v for k, v in whole["metrics"].items() if not k.startswith("publish/")}
    steps = [step for step, _ in whole["metrics"]["comm/fraction"]]
    assert steps == list(range(1, undisturbed.iterations + 1))

    run = Struck(undisturbed, undisturbed.ray.folder / "small")
    assert run.next_checkpoint()
    with run.held() as workers:
        # By Ray's default they would starve on a machine that something else keeps busy.
        assert [worker.nice() for worker in workers] == [psutil.Process().nice()] * 2
        workers[0].suspend()
    time.sleep(1.5)
    workers[0].resume()

    assert run.next_checkpoint()
    with run.held() as workers:
        for worker in workers:
            worker.suspend()  # so that no newer checkpoint comes
        damaged = max(run.checkpoints())
        damage(damaged / "worker_00001.pt", Random(1))
        workers[0].kill()
        workers[1].resume()

    assert run.next_checkpoint()
    disk.fill()
    time.sleep(1.5)
    disk.empty()

    while run.next_checkpoint():  # until no restart is left
        with run.held() as workers:
            for worker in workers[:1]:
                worker.kill()

    code, said = run.command.wait(), run.command.said
    assert code == 1, said
    assert f"checkpoint not used: {damaged.name}: worker_00001.pt is damaged" in said
    # Ray sees the dead worker, the other worker its lost connection: whichever is told first.
    assert re.search("process died|Connection (closed|reset) by peer", said), said
    (run_id,) = re.findall(r"--resume (\w+)", said)
    resumed = run.train("--resume", run_id)
    assert resumed.wait() == 0, resumed.said
    assert list(differences(outcome(run.folder, "soak", "struck"), whole)) == []
