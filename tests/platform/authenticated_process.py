"""One of three workers with a key: `python authenticated_process.py RANK WORKERS FOLDER`.

What each case came to is in FOLDER/authenticated_RANK.json.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taugrad.compressors.exchange.keys import KEY, KEY_FILE
from taugrad.platform.data.feeding import Batch
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.base import Moment, Synchronization
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.tasks.builtin import ClassificationTask
from taugrad.platform.training.batch_plan import Position

STEPS, DEADLINE_S, INPUTS, CLASSES = 3, 20, 20, 10
STROM = "strom(density(0.1)) | golomb_rice"
RIGHT, WRONG = "the key of all workers", "the key of somebody else"
MODES: dict[str, dict[str, Any]] = {
    "exact": {"mode": "allgather"},
    "hierarchical": {"mode": "allgather", "exchange": "hierarchical", "sites": [[0, 1], [2]]},
    "ring": {"mode": "ring"},
    "async": {"mode": "async", "follow_schedule": True},
    "quorum": {"mode": "weights", "every": 1, "quorum": 1.0, "schedule": {}},
    "sharded": {"mode": "sharded"},
    "server": {"mode": "parameter_server"},
    "weights": {"mode": "weights", "every": 1},
    "weights, sharded": {"mode": "weights", "every": 1, "pattern": "sharded"},
    "weights, hierarchical": {
        "mode": "weights",
        "every": 1,
        "pattern": "hierarchical",
        "sites": [[0, 1], [2]],
    },
}
"""All that can be authenticated."""


def spec(line: str, sync: dict[str, Any]) -> dict[str, Any]:
    return {
        "compressor": line,
        "sync": sync,
        "training": {"optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0}},
        "workers": {"count": 3},
    }


def build(given: dict[str, Any], model: torch.nn.Module) -> Synchronization:
    sync, _ = build_synchronization(
        RunSpec.model_validate(given), model, ClassificationTask(), torch.device("cpu")
    )
    return sync


def batch(rank: int, step: int) -> Batch:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn((6, INPUTS), generator=generator)
    return Batch(inputs, torch.randint(CLASSES, (6,), generator=generator), 1.0)


def moment(step: int) -> Moment:
    return Moment(Position(0, step, STEPS, step, 18, STEPS), step + 1 == STEPS, observe=step == 1)


def trained(mode: dict[str, Any]) -> Any:
    sync = build(spec(STROM, mode), model())
    for step in range(STEPS):
        sync.iterate([batch(rank, step) for rank in sync.ranks], moment(step))
    return sync


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, 30), torch.nn.Tanh(), torch.nn.Linear(30, CLASSES))


def outcome(name: str, *, authenticated: bool) -> dict[str, Any]:
    """Weights, ledger, and what went over which link where that is known."""
    sync = trained(MODES[name] | ({"authenticated": True} if authenticated else {}))
    links = sync.links()
    return {
        "weights": [each.detach().flatten().tolist() for each in sync.model.parameters()],
        "totals": sync.totals.state_dict(),
        "links": None if links is None else links.nbytes.tolist(),
        "messages": None if links is None else links.messages.tolist(),
    }


def error_of(mode: dict[str, Any]) -> tuple[str, str]:
    try:
        trained(mode | {"authenticated": True})
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def main(rank: int, workers: int, folder: Path) -> None:
    torch.set_num_threads(1)
    groups = count()

    def go(work: Callable[[], Any], key: str | None = RIGHT) -> Any:
        for name in (KEY, KEY_FILE):
            os.environ.pop(name, None)
        if key is not None:
            os.environ[KEY] = key
        store = dist.FileStore(str(folder / f"store_{next(groups)}"), workers)
        timeout = timedelta(seconds=DEADLINE_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=timeout)
        try:
            return work()
        finally:
            dist.destroy_process_group()

    if workers == 1:
        ways = {"plain": False, "tagged": True}
        alone = {way: go(partial(outcome, "exact", authenticated=tags)) for way, tags in ways.items()}
        (folder / f"authenticated_{rank}.json").write_text(json.dumps({"alone": alone}))
        return
    found: dict[str, Any] = {"alike": {}, "keys": {}}
    for name in MODES:
        found["alike"][name] = [go(partial(outcome, name, authenticated=tags)) for tags in (False, True)]
    for name in ("exact", "sharded"):
        for case, key in (("wrong", WRONG), ("missing", None)):
            own = key if rank == 1 else RIGHT
            found["keys"][f"{name}, {case}"] = go(partial(error_of, MODES[name]), own)
    (folder / f"authenticated_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
