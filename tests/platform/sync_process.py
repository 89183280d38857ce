"""Trains a list of specs in one process of a group: `python sync_process.py RANK WORKERS FOLDER`.

FOLDER/specs.json names them. Each is trained to its end; then again from the checkpoint in its middle.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from trainer_process import saved

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization import boxes, processes
from taugrad.platform.synchronization.in_rounds import InRounds
from taugrad.platform.training.trainer import Trainer

SENT = {"bytes": 0, "messages": 0, "told": 0}
"""By this process, point to point, counted where torch is handed tensors: all bytes, messages, and bytes of
what is sent as numbers alone."""
MOST_NUMBERS = 56
"""Bytes before a message; its own header has 28."""


class CountedOperation(dist.P2POp):
    def __init__(self, op: Any, tensor: torch.Tensor, *where: Any) -> None:
        super().__init__(op, tensor, *where)
        if op is not dist.isend:
            return
        SENT["bytes"] += tensor.numel() * tensor.element_size()
        if tensor.dtype == torch.int64:
            SENT["told"] += 8 * tensor.numel()
        else:
            SENT["messages"] += 1

    def __new__(cls, op: Any, tensor: torch.Tensor, *where: Any) -> "CountedOperation":
        return super().__new__(cls, op, tensor, *where)


class CountedBoxes(boxes.Boxes):
    def _dispatch(self, what: torch.Tensor, other: int, number: int, rest: int = 0) -> None:
        SENT["bytes"] += what.numel()
        SENT["messages"] += not rest and what.numel() > MOST_NUMBERS
        super()._dispatch(what, other, number, rest)


class Recorder:
    """Keeps metrics; a checkpoint goes to a folder that all processes share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.evaluations: list[dict[str, float]] = []

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append((iteration, dict(metrics)))

    def stage(self, name: str) -> None:
        pass

    def progress(self, progress: object, *, evaluated: bool) -> None:
        pass

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.evaluations.append(dict(metrics))

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        folder = self.folder / str(iteration)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
        dist.barrier()

    def undelivered(self) -> list:
        return []


def result(trainer: Trainer, recorder: Recorder) -> dict[str, Any]:
    links = trainer.sync.links()
    timeless = {k: v for k, v in trainer.totals().items() if "seconds" not in k}
    sync = trainer.sync
    return {
        "weights": {name: each.clone() for name, each in trainer.model.state_dict().items()},
        "totals": sync.totals.state_dict(),
        "metrics": timeless,
        "logged": [
            (
                step,
                {
                    k: v
                    for k, v in metrics.items()
                    if not k.startswith(("time/", "net/")) and "seconds" not in k
                },
            )
            for step, metrics in recorder.logged
        ],
        "evaluations": [(each["eval/accuracy"], each["eval/loss"]) for each in recorder.evaluations],
        "links": None
        if links is None
        else {
            "bytes": torch.from_numpy(links.nbytes.copy()),
            "messages": torch.from_numpy(links.messages.copy()),
        },
        "link_bytes": torch.from_numpy(sync.traffic.link_bytes.copy())
        if isinstance(sync, InRounds)
        else None,
        "link_messages": (
            torch.from_numpy(sync.traffic.link_messages.copy()) if isinstance(sync, InRounds) else None
        ),
    }


def run(spec: RunSpec, folder: Path) -> dict[str, Any]:
    data = load(spec.data)
    SENT.update(bytes=0, messages=0, told=0)
    whole = Recorder(folder)
    trainer = Trainer(spec, data, torch.device("cpu"), whole)
    trainer.fit()
    found = result(trainer, whole) | {"sent": dict(SENT)}
    again = Recorder(folder / "resumed")
    resumed = Trainer(spec, data, torch.device("cpu"), again)
    resumed.resume(saved(folder / str(spec.checkpoint.interval), dist.get_rank()))
    resumed.fit()
    return found | {"resumed": result(resumed, again)}


def main(rank: int, workers: int, folder: Path) -> None:
    torch.set_num_threads(1)
    processes.Boxes = CountedBoxes  # type: ignore[misc]
    processes.dist.P2POp = CountedOperation  # type: ignore[misc]
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), workers), rank=rank, world_size=workers
    )
    specs = json.loads((folder / "specs.json").read_text())
    results = {}
    for number, (name, spec) in enumerate(specs.items()):
        results[name] = run(RunSpec.model_validate(spec), folder / f"run_{number}")
    torch.save(results, folder / f"result_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
