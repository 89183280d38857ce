"""Authenticated messages between real workers: the same bits, and nobody else's."""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from group import run_group

from taugrad.compressors.exchange.keys import KEY, KEY_FILE
from taugrad.platform.data.feeding import Batch
from taugrad.platform.preflight import check
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.synchronization.base import Moment, Synchronization
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.tasks.builtin import ClassificationTask
from taugrad.platform.training.batch_plan import Position

WORKERS = 3
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
LINKED = ("sharded", "server", "weights", "weights, hierarchical", "hierarchical")
"""Of these it is known what went over which link."""


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


def work(rank: int, workers: int, folder: Path) -> dict[str, Any]:
    """In each worker: every case in a group of its own, with the key that the worker has in it."""
    dist.destroy_process_group()
    groups = count()

    def go(work: Callable[[], Any], key: str | None = RIGHT) -> Any:
        for name in (KEY, KEY_FILE):
            os.environ.pop(name, None)
        if key is not None:
            os.environ[KEY] = key
        store = dist.FileStore(str(folder / f"store_{workers}_{next(groups)}"), workers)
        timeout = timedelta(seconds=DEADLINE_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=timeout)
        try:
            return work()
        finally:
            dist.destroy_process_group()

    keys = {"wrong": WRONG, "missing": None}
    found = {
        "alike": {
            name: [go(partial(outcome, name, authenticated=tags)) for tags in (False, True)]
            for name in (MODES if workers > 1 else ["exact"])
        },
        "keys": {
            f"{name}, {case}": go(partial(error_of, MODES[name]), key if rank == 1 else RIGHT)
            for name in ("exact", "sharded")
            for case, key in (keys.items() if workers > 1 else ())
        },
    }
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    found = run_group("test_authenticated", "work", WORKERS, tmp_path_factory.mktemp("authenticated"))
    assert RIGHT not in str(found)
    assert WRONG not in str(found)
    return found


@pytest.mark.parametrize("name", MODES)
def test_encryption_changes_neither_a_bit_nor_the_ledger(ranks, name):
    plain, encrypted = ranks[0]["alike"][name]
    assert plain["weights"] == encrypted["weights"]
    assert plain["totals"] == encrypted["totals"]
    for other in ranks[1:]:
        assert other["alike"][name][1]["weights"] == encrypted["weights"]
    for each in (plain, encrypted) if name in LINKED else ():
        assert np.sum(each["links"]) == each["totals"]["received_bytes"]


@pytest.mark.parametrize("mode", ["exact", "sharded"])
def test_another_key_is_refused_on_every_rank(ranks, mode):
    said = {tuple(rank["keys"][f"{mode}, wrong"]) for rank in ranks}
    assert said == {
        (
            "WorkersDisagree",
            "the workers do not agree: they do not have the same key; give all of them the same "
            "TAUGRAD_KEY_FILE, or TAUGRAD_KEY",
        )
    }


@pytest.mark.parametrize("mode", ["exact", "sharded"])
def test_a_missing_key_is_named_on_every_rank(ranks, mode):
    said = {tuple(rank["keys"][f"{mode}, missing"]) for rank in ranks}
    assert said == {
        (
            "KeyProblem",
            "sync.authenticated on worker 1: there is no key; set TAUGRAD_KEY_FILE to a file that holds one, "
            "or TAUGRAD_KEY, for all workers",
        )
    }


BASE = {"compressor": "wgt(0.01)", "workers": {"count": 2}}


def test_the_key_is_asked_for_before_anything_starts(monkeypatch):
    spec = RunSpec.model_validate(BASE | {"sync": {"mode": "sharded", "authenticated": True}})
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(SpecError, match=r"^here: sync\.authenticated = true: there is no key; set"):
        check(spec, "here", local=True)
    monkeypatch.setenv(KEY, "too short")
    with pytest.raises(SpecError, match=r"sync\.authenticated") as refused:
        check(spec, "here", local=True)
    assert "too short" not in str(refused.value)


def test_encryption_defines_no_other_computation_and_the_key_is_no_field():
    specs = [
        RunSpec.model_validate(BASE | {"sync": {"mode": "sharded", "authenticated": tags}})
        for tags in (False, True)
    ]
    assert specs[0].fingerprint() == specs[1].fingerprint()
    assert not [name for name in specs[1].flat() if "key" in name]


def test_a_worker_by_itself_needs_nobody_s_key(tmp_path):
    ((plain, tagged),) = run_group("test_authenticated", "work", 1, tmp_path)[0]["alike"].values()
    assert plain == tagged
