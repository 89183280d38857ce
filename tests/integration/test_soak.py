"""One run that much happens to ends as one that nothing happens to; `make soak` is the long form of it."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from faults.commands import family, named
from faults.comparing import Outcome, differences, outcome_of
from faults.kinds import damage
from mlflow.tracking import MlflowClient
from needs import missing

pytestmark = pytest.mark.ray

SPEC = """
experiment: soak
name: {name}
data: {{kind: synthetic, train_examples: 640}}
model: {{kind: mlp, widths: [16]}}
training: {{epochs: 150, batch_size: 32, optimizer: {{lr: 0.02}}}}
compressor: "strom(tau=0.005) | golomb_rice"
sync: {{mode: sharded}}
checkpoint: {{interval: 60}}
workers: {{cpus: 0.5, max_restarts: {restarts}}}
"""
ITERATIONS = 3000
DISK_BYTES = 128 * 2**20  # a page of interactive charts alone has 5 MB, and is kept twice
TIMEOUT_S = 480  # other tests run at the same time


class Disk:
    """A small one, mounted where a run keeps everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "soak", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            missing(f"needs root, to mount a small disk: {done.stderr.strip()}")

    def fill(self) -> None:
        for piece in (2**16, 1):
            try:
                with (self._folder / "filling").open("ab", buffering=0) as file:
                    while file.write(bytes(piece)):
                        pass
            except OSError:
                continue

    def empty(self) -> None:
        (self._folder / "filling").unlink()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.close()


class Struck:
    """A run to which things happen while it goes on."""

    def __init__(self, on_one_ray: Callable[..., tuple[int, str]], folder: Path, *arguments: str) -> None:
        self.folder, self._ray = folder, on_one_ray
        self._seen = self.checkpoints()
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self.ended: tuple[int, str] | None = None
        self._thread.start()

    def _run(self, *arguments: str) -> None:
        self.ended = self._ray(*arguments)

    def next_checkpoint(self) -> Path:
        """Waits for another than the last time."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := self.checkpoints() - self._seen):
            assert self.ended is None, self.ended
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self._seen |= found
        return max(found)

    def checkpoints(self) -> set[Path]:
        return {each.parent for each in self.folder.glob("taugrad-runs/*/iteration_*/manifest.json")}

    def workers(self) -> list[psutil.Process]:
        """Those that train."""
        return named(family(self._ray.process.pid), "RayTrainWorker")

    def wait(self) -> tuple[int, str]:
        self._thread.join(TIMEOUT_S)
        assert self.ended is not None
        return self.ended


def outcome(folder: Path, name: str) -> Outcome:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("soak")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    return outcome_of(client, run, folder / "taugrad-runs")


def test_a_run_that_much_happens_to_ends_as_one_that_nothing_happens_to(
    disk: Disk, on_one_ray: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    for name, restarts in (("whole", 0), ("struck", 9)):
        (tmp_path / f"{name}.yaml").write_text(SPEC.format(name=name, restarts=restarts))
    code, said = on_one_ray("train", "whole.yaml")
    assert code == 0, said
    whole = outcome(tmp_path, "whole")
    assert [step for step, _ in whole["metrics"]["comm/fraction"]] == list(range(1, ITERATIONS + 1))

    run = Struck(on_one_ray, tmp_path, "train", "struck.yaml")
    run.next_checkpoint()
    stopped = run.workers()[0]
    stopped.suspend()
    time.sleep(1.5)
    stopped.resume()

    workers = run.workers()  # found first: to look for them takes a while, and the run goes on
    run.next_checkpoint()
    for each in workers:
        each.suspend()  # so that no newer checkpoint comes
    damaged = max(run.checkpoints())
    assert damaged.name < f"iteration_{ITERATIONS:08d}", "the run had ended before"
    damage(damaged / "worker_00001.pt", Random(1))
    workers[0].kill()
    workers[1].resume()

    run.next_checkpoint()
    disk.fill()
    time.sleep(1.5)
    disk.empty()

    run.next_checkpoint()
    run.workers()[0].kill()

    code, said = run.wait()
    assert code == 0, said
    assert f"checkpoint not used: {damaged.name}: worker_00001.pt is damaged" in said
    assert list(differences(outcome(tmp_path, "struck"), whole)) == []
