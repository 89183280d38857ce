"""Trains specs that follow a link in one process of a group: `python adapt_process.py RANK WORKERS FOLDER`.

FOLDER/specs.json names them. What a step took is not measured but reckoned: computing takes COMPUTE_S, a
message DELAY_S and its bytes over a rate, which changes in mid-run. Each spec is trained to its end; then
again from the checkpoint in its middle.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sync_process import Recorder
from trainer_process import saved

from taugrad.compressors import Step
from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.adapting.adapter import Measured
from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.synchronization.ledger import Iteration
from taugrad.platform.synchronization.weights import LocalTraining
from taugrad.platform.training.trainer import Trainer

COMPUTE_S = 0.05
LATE = 1.2
"""So many times longer worker 1 computes; all wait for it."""
DELAY_S = 0.001
FAST, SLOW = 600e3, 60e3
"""Bytes a second."""
SLOWER_FROM, FASTER_FROM, STEPS = 33, 88, 142
"""Steps before the link changes, and before the end."""


def rate_at(number: int) -> float:
    """Bytes a second in a step, counted from 0."""
    return SLOW if SLOWER_FROM <= number < FASTER_FROM else FAST


class Watched:
    """A trainer whose link is reckoned; keeps what was in force in every step."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.recorder = Recorder(folder)
        self.trainer = Trainer(spec, load(spec.data), torch.device("cpu"), self.recorder)
        sync = self.trainer.sync
        assert isinstance(sync, HookedGradients | LocalTraining)
        assert sync.adapter is not None
        self.sync, self.adapter = sync, sync.adapter
        self.adapter.measure = self.measure
        self.steps: list[tuple[int, float, int, float]] = []
        iterate = sync.iterate

        def watched(*arguments: Any) -> Iteration:
            choice = self.adapter.choice
            iteration = iterate(*arguments)
            nbytes = iteration.step.received_bytes / sync.workers
            self.steps.append((self.trainer.done, choice.density, choice.local_steps, nbytes))
            return iteration

        sync.iterate = watched  # type: ignore[method-assign]

    def measure(self, step: Step, seconds: float) -> Measured:
        assert seconds > 0
        own = COMPUTE_S * (LATE if self.sync.ranks[0] == 1 else 1.0)
        nbytes = step.received_bytes / self.sync.workers
        if not nbytes:
            return Measured(own, 0.0, 0.0, 0.0)
        exchange_s = DELAY_S + nbytes / rate_at(self.trainer.done) + LATE * COMPUTE_S - own
        return Measured(own, exchange_s, exchange_s, nbytes)

    def result(self) -> dict[str, Any]:
        self.trainer.fit()
        return {
            "weights": {name: each.clone() for name, each in self.trainer.model.state_dict().items()},
            "own": self.sync.own_state(),
            "adapter": self.adapter.shared_state(),
            "totals": self.sync.totals.state_dict(),
            "steps": self.steps,
            "decided": [
                (number, {name: value for name, value in metrics.items() if name.startswith("adapt/")})
                for number, metrics in self.recorder.logged
                if "adapt/density" in metrics
            ],
        }


def run(spec: RunSpec, folder: Path) -> dict[str, Any]:
    whole = Watched(spec, folder).result()
    again = Watched(spec, folder / "resumed")
    again.trainer.resume(saved(folder / str(spec.checkpoint.interval), dist.get_rank()))
    return whole | {"resumed": again.result()}


def main(rank: int, workers: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), workers), rank=rank, world_size=workers
    )
    specs = json.loads((folder / "specs.json").read_text())
    results = {
        name: run(RunSpec.model_validate(spec), folder / f"run_{number}")
        for number, (name, spec) in enumerate(specs.items())
    }
    torch.save(results, folder / f"result_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
