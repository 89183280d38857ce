"""One run that much happens to ends as one that nothing happens to; `make soak` is the long form of it."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
import pytest
from benchmarks.platform.faults.commands import family, named
from benchmarks.platform.faults.comparing import Outcome, differences, outcome_of
from benchmarks.platform.faults.kinds import damage
from mlflow.tracking import MlflowClient
from needs import missing

pytestmark = pytest.mark.ray

SPEC = """
experiment: soak
name: {name}
data: {{kind: synthetic, train_examples: 640}}
model: {{kind: custom, factory: "pausing:net", arguments: {{hold: "{hold}"}}}}
training: {{epochs: 45, batch_size: 32, optimizer: {{lr: 0.02}}}}
compressor: "strom(tau=0.005) | golomb_rice"
sync: {{mode: sharded}}
checkpoint: {{interval: 60}}
workers: {{cpus: 0.5, max_restarts: {restarts}}}
"""
PAUSING = """
import os, time, torch

class Pausing(torch.nn.Sequential):
    def forward(self, x):
        while os.path.exists(self.hold):
            time.sleep(0.005)
        return super().forward(x)

def net(channels, height, width, classes, hold):
    net = Pausing(torch.nn.Flatten(), torch.nn.Linear(channels * height * width, 16),
                  torch.nn.ReLU(), torch.nn.Linear(16, classes))
    net.hold = hold
    return net
"""
HOLD = "hold"
ITERATIONS = 900
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
def disk(tmp_path):
    made = Disk(tmp_path)
    yield made
    made.close()


class Struck:
    """A run to which things happen while it goes on."""

    def __init__(self, on_own_ray: Callable[..., tuple[int, str]], folder: Path, *arguments: str) -> None:
        self.folder, self._ray = folder, on_own_ray
        self._of_others: set[Path] = set()
        self._of_others, self._seen = self.checkpoints(), set[Path]()
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self.ended: tuple[int, str] | None = None
        self._thread.start()

    def _run(self, *arguments: str) -> None:
        self.ended = self._ray(*arguments)

    def next_checkpoint(self) -> bool:
        """Waits for another than the last time; none comes where the run has ended."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := self.checkpoints() - self._seen) and self.ended is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self._seen |= found
        return self.ended is None

    @contextmanager
    def held(self) -> Iterator[list[psutil.Process]]:
        """Those that train. No iteration begins meanwhile: to find them can take as long as a run."""
        hold = self.folder / HOLD
        hold.touch()
        yield named(family(self._ray.process.pid), "RayTrainWorker")
        hold.unlink()

    def checkpoints(self) -> set[Path]:
        """Those of this run."""
        found = self.folder.glob("taugrad-runs/*/iteration_*/manifest.json")
        return {each.parent for each in found} - self._of_others

    def wait(self) -> tuple[int, str]:
        self._thread.join(TIMEOUT_S)
        return self.ended


def outcome(folder: Path, name: str) -> Outcome:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("soak")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    return outcome_of(client, run, folder / "taugrad-runs")


def test_a_run_that_much_happens_to_ends_as_one_that_nothing_happens_to(disk, on_own_ray, tmp_path):
    for name, restarts in (("whole", 0), ("struck", 1)):
        spec = SPEC.format(name=name, restarts=restarts, hold=tmp_path / HOLD)
        (tmp_path / f"{name}.yaml").write_text(spec)
    (tmp_path / "pausing.py").write_text(PAUSING)
    code, said = on_own_ray("train", "whole.yaml", "--allow-custom")
    assert code == 0, said
    whole = outcome(tmp_path, "whole")
    assert [step for step, _ in whole["metrics"]["comm/fraction"]] == list(range(1, ITERATIONS + 1))

    run = Struck(on_own_ray, tmp_path, "train", "struck.yaml", "--allow-custom")
    assert run.next_checkpoint()
    with run.held() as workers:
        workers[0].suspend()
    time.sleep(1.5)
    workers[0].resume()

    assert run.next_checkpoint()
    with run.held() as workers:
        for each in workers:
            each.suspend()  # so that no newer checkpoint comes
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
            for each in workers[:1]:
                each.kill()

    code, said = run.wait()
    assert code == 1, said
    assert f"checkpoint not used: {damaged.name}: worker_00001.pt is damaged" in said
    # Ray sees the dead worker, the other worker its lost connection: whichever is told first.
    assert re.search("process died|Connection (closed|reset) by peer", said), said
    (run_id,) = re.findall(r"--resume (\w+)", said)
    code, said = on_own_ray("train", "--resume", run_id, "--allow-custom")
    assert code == 0, said
    assert list(differences(outcome(tmp_path, "struck"), whole)) == []
