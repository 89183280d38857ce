"""Runs in every mode: specs that workers train, or one process for all of them.

Each is trained to its end; then again from the checkpoint in its middle.
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from group import run_group
from recorder import Recorder, saved_in, trained

from taugrad.compressors.exchange.keys import KEY
from taugrad.compressors.exchange.mesh import Mesh
from taugrad.compressors.ops.array import Bytes
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.synchronization.synchronization import WorkerInLockstep
from taugrad.platform.training.trainer import Trainer

Spec = dict[str, Any]
Result = dict[str, Any]
SENT = {"bytes": 0, "messages": 0}
"""By this process in exchanges, counted where the carrier is handed payloads."""
HYBRID = ("counts", "targets", "features", "features' gradients", "neurons", "neurons' gradients", "weights")
"""What hybrid parallelism sends beside rounds."""


def count_what_is_sent() -> None:
    send = Mesh.send

    def counted(mesh: Mesh, to: int, tag: str, payload: Bytes) -> None:
        if tag.startswith(("round", "bucket")) or tag in HYBRID:
            SENT["bytes"] += payload.size
            SENT["messages"] += 1
        send(mesh, to, tag, payload)

    Mesh.send = counted  # type: ignore[method-assign]


def result(trainer: Trainer, recorder: Recorder) -> dict[str, Any]:
    links = trainer.sync.links()
    timeless = {k: v for k, v in trainer.totals().items() if "seconds" not in k}
    sync = trainer.sync
    hooked, in_rounds = isinstance(sync, HookedGradients), isinstance(sync, WorkerInLockstep)
    traffic = sync.state.traffic if hooked else sync.ledger.traffic if in_rounds else None
    return {
        "weights": {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()},
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
        "evaluations": [(row["eval/accuracy"], row["eval/loss"]) for _, row in recorder.evaluations],
        "links": links and {"bytes": torch.tensor(links.nbytes), "messages": torch.tensor(links.messages)},
        "link_bytes": traffic and torch.tensor(traffic.link_bytes),
        "link_messages": traffic and torch.tensor(traffic.link_messages),
    }


def run(spec: Spec, folder: Path) -> Result:
    SENT.update(bytes=0, messages=0)
    outcome = result(*trained(spec, folder)) | {"sent": dict(SENT)}
    middle = saved_in(folder / str(RunSpec.model_validate(spec).checkpoint.interval), dist.get_rank())
    return outcome | {"resumed": result(*trained(spec, folder / "resumed", middle))}


def train_specs(_rank: int, _workers: int, folder: Path) -> dict[str, Result]:
    """In each worker; FOLDER/specs.json names them."""
    count_what_is_sent()
    specs = json.loads((folder / "specs.json").read_text())
    return {name: run(spec, folder / f"run_{number}") for number, (name, spec) in enumerate(specs.items())}


def train(specs: dict[str, Spec], processes: int, folder: Path) -> list[dict[str, Result]]:
    """Each process's results, by name."""
    folder.mkdir()
    (folder / "specs.json").write_text(json.dumps(specs))
    with mock.patch.dict(os.environ, {KEY: "the key of all workers"}):
        return run_group("mode_runs", "train_specs", processes, folder)


def train_really(specs: dict[str, Spec], folder: Path) -> dict[str, list[Result]]:
    """By name, each worker's results."""
    groups: dict[int, dict[str, Spec]] = defaultdict(dict)
    for name, spec in specs.items():
        groups[spec["workers"]["count"]][name] = spec
    result = {}
    for workers, group in groups.items():
        results = train(group, workers, folder / f"real_{workers}")
        result.update({name: [result[name] for result in results] for name in group})
    return result


def same(one: Result, other: Result) -> bool:
    """Whether weights are alike to the bit."""
    return all(torch.equal(tensor, other["weights"][key]) for key, tensor in one["weights"].items())
