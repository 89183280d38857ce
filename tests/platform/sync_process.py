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

from taugrad.compressors.exchange.mesh import Mesh
from taugrad.compressors.ops.array import Bytes
from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.in_rounds import InRounds
from taugrad.platform.training.reporting import Listener
from taugrad.platform.training.trainer import Trainer

SENT = {"bytes": 0, "messages": 0}
"""By this process in rounds, counted where the carrier is handed payloads."""
NUMBERS = 48
"""Bytes before a message; its own header has 28."""


def count_what_is_sent() -> None:
    send = Mesh.send

    def counted(mesh: Mesh, to: int, tag: str, payload: Bytes) -> None:
        if tag == "round" or tag.startswith("channel"):  # local training, and hybrid parallelism
            SENT["bytes"] += payload.size
            SENT["messages"] += tag != "round" or payload.size not in (0, NUMBERS)
        send(mesh, to, tag, payload)

    Mesh.send = counted  # type: ignore[method-assign]


class Recorder(Listener):
    """Keeps metrics; a checkpoint goes to a folder that all processes share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.evaluations: list[dict[str, float]] = []

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append((iteration, dict(metrics)))

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.evaluations.append(dict(metrics))

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        folder = self.folder / str(iteration)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
        dist.barrier()


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
        "link_bytes": torch.from_numpy(sync.ledger.traffic.link_bytes.copy())
        if isinstance(sync, InRounds)
        else None,
        "link_messages": (
            torch.from_numpy(sync.ledger.traffic.link_messages.copy()) if isinstance(sync, InRounds) else None
        ),
    }


def run(spec: RunSpec, folder: Path) -> dict[str, Any]:
    data = load(spec.data)
    SENT.update(bytes=0, messages=0)
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
    count_what_is_sent()
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
