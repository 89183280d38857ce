"""One worker of training runs without Ray: `python trainer_process.py RANK WORKERS FOLDER`.

Starting a process takes seconds and training milliseconds, so it trains every spec of FOLDER/specs.json.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taugrad.platform.data import load
from taugrad.platform.data.examples import Tensors
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.builtin import ClassificationTask
from taugrad.platform.training.checkpoint import SHARED, Saved, unpack, worker_file
from taugrad.platform.training.evaluation import evaluate
from taugrad.platform.training.reporting import Listener
from taugrad.platform.training.trainer import Trainer


class Recorder(Listener):
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.checkpoints: list[int] = []

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append((iteration, dict(metrics)))

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.evaluations.append((iteration, dict(metrics)))

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        self.checkpoints.append(iteration)


def saved(folder: Path, rank: int) -> Saved:
    """A checkpoint that a trainer wrote into a folder, which has no manifest."""
    return Saved(*(unpack((folder / name).read_bytes()) for name in (SHARED, worker_file(rank))))


def run(spec: RunSpec) -> dict[str, Any]:
    recorder = Recorder()
    trainer = Trainer(spec, load(spec.data), torch.device("cpu"), recorder)
    trainer.fit()
    return {
        "weights": trainer.model.state_dict(),
        "logged": recorder.logged,
        "evaluations": recorder.evaluations,
        "checkpoints": recorder.checkpoints,
        "totals": trainer.totals(),
    }


def evaluation(rank: int, workers: int) -> dict[str, Any]:
    """What the workers make of a net with random weights, and what it needs to do the same elsewhere."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 10))
    inputs, labels = 3 * torch.randn(1903, 20), torch.randint(10, (1903,))
    examples, device = Tensors(inputs, labels), torch.device("cpu")
    found = evaluate(model, ClassificationTask(), examples, rank, workers, device)
    return {
        "accuracy": found["accuracy"],
        "loss": found["loss"],
        "training": model.training,
        "weights": dict(model.state_dict()),
        "inputs": inputs,
        "labels": labels,
    }


def main(rank: int, workers: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    specs = json.loads((folder / "specs.json").read_text())
    results = {name: run(RunSpec.model_validate(spec)) for name, spec in specs.items()}
    results["evaluation"] = evaluation(rank, workers)
    torch.save(results, folder / f"result_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
