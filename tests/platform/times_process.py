"""One worker of runs whose times are looked at: `python times_process.py RANK WORKERS FOLDER`.

Worker 1 comes late to every step: it holds on until worker 0 does nothing but wait for it. Then the clock of
both goes on by LATE_S, a time that no machine is busy for. FOLDER/specs.json has the runs; what each worker
found is in FOLDER/times_RANK.json.
"""

import json
import os
import sys
import time
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from trainer_process import Recorder

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.ledger import Iteration
from taugrad.platform.training.trainer import Trainer

LATE_S = 1000.0
LOOKS = 8


class Clock:
    """The real one, and LATE_S more each time that worker 1 was late."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._shared = np.memmap(folder / "clock", np.int64, "r+", shape=2)
        if rank == 0:
            self._shared[1] = os.getpid()
        self._real = {kind: getattr(time, kind) for kind in ("perf_counter", "time")}
        ours = [module for name, module in sys.modules.items() if name.startswith("taugrad.")]
        for kind, real in self._real.items():
            for module in [*ours, time]:  # those that have it, and those that take it later
                if getattr(module, kind, None) is real:
                    setattr(module, kind, getattr(self, kind))

    def perf_counter(self) -> float:
        return self._real["perf_counter"]() + LATE_S * int(self._shared[0])

    def time(self) -> float:
        return self._real["time"]() + LATE_S * int(self._shared[0])

    def be_late(self) -> None:
        """Holds on until the thread that trains in worker 0 sleeps, whenever one looks."""
        asleep = 0
        while asleep < LOOKS:
            stat = Path(f"/proc/{self._shared[1]}/stat").read_text()
            asleep = asleep + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
            sleep(0.002)
        self._shared[0] += 1


def run(spec: RunSpec, clock: Clock) -> dict[str, Any]:
    recorder = Recorder()
    trainer = Trainer(spec, load(spec.data), torch.device("cpu"), recorder)
    iterate, steps, seconds = trainer.sync.iterate, [], []

    def late(*arguments: Any) -> Iteration:
        began = clock.perf_counter()
        if dist.get_rank() == 1:
            clock.be_late()
        iteration = iterate(*arguments)
        seconds.append(clock.perf_counter() - began)
        steps.append(iteration.step)
        return iteration

    trainer.sync.iterate = late  # type: ignore[method-assign]
    trainer.fit()
    timeline = trainer.timeline()
    return {
        "steps": [
            {
                "wait": step.blocked_s,
                "compute": took - step.compress_s - step.blocked_s - step.decode_s,
                "wire_bytes": step.wire_bytes,
            }
            for step, took in zip(steps, seconds, strict=True)
        ],
        "logged": [metrics for _, metrics in recorder.logged if "train/loss" in metrics],
        "timeline": None if timeline is None else timeline.to_json(),
    }


def main(rank: int, workers: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    specs = json.loads((folder / "specs.json").read_text())
    clock = Clock(folder, rank)
    dist.barrier()
    found = {name: run(RunSpec.model_validate(spec), clock) for name, spec in specs.items()}
    (folder / f"times_{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
