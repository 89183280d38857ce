"""Keys of encrypted messages between workers; test_modes has encrypted runs, which differ in no bit."""

import os
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import torch.distributed as dist
from async_training import run, training_of
from group import run_group

from taugrad.compressors.exchange.keys import KEY, KEY_FILE
from taugrad.platform.launching.driver.preflight import check
from taugrad.platform.spec import RunSpec, SpecError

WORKERS, DEADLINE_S = 3, 20
KEYS = {"wrong": "the key of somebody else", "missing": None}
"""Worker 1's."""
SAID = {
    "wrong": ("WorkersDisagree", "they do not have the same key; give all of them the same"),
    "missing": ("KeyProblem", "sync.authenticated on worker 1: there is no key; set"),
}
PATTERNS = ("allgather", "sharded")


def error_of(mode: str) -> tuple[str, str]:
    try:
        run(training_of(WORKERS, {"mode": "gradients", "pattern": mode, "authenticated": True}), 0, 1, 1)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def work(rank: int, workers: int, folder: Path) -> dict[str, tuple[str, str]]:
    """In each worker: every case in a group of its own, with the key that the worker has in it."""
    dist.destroy_process_group()
    results = {}
    for mode, case in product(PATTERNS, KEYS):
        key = KEYS[case] if rank == 1 else "the key of all workers"
        for name in (KEY, KEY_FILE):
            os.environ.pop(name, None)
        os.environ |= {KEY: key} if key else {}
        store = dist.FileStore(str(folder / f"{mode}_{case}"), workers)
        timeout = timedelta(seconds=DEADLINE_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=timeout)
        results[f"{mode}, {case}"] = error_of(mode)
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return results


def test_another_key_and_a_missing_one_are_named_on_every_rank(tmp_path):
    results = run_group("test_authenticated", "work", WORKERS, tmp_path)
    assert results == [results[0]] * WORKERS
    for mode, case in product(PATTERNS, KEYS):
        kind, said = results[0][f"{mode}, {case}"]
        assert kind == SAID[case][0]
        assert SAID[case][1] in said


def test_the_key_is_asked_for_before_anything_starts(monkeypatch):
    sync = {"mode": "gradients", "pattern": "sharded", "authenticated": True}
    spec = RunSpec.model_validate({"compressor": "wgt(0.01)", "workers": {"count": 2}, "sync": sync})
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(SpecError, match=r"^here: sync\.authenticated = true: there is no key; set"):
        check(spec, "here", local=True)
    monkeypatch.setenv(KEY, "too short")
    with pytest.raises(SpecError, match=r"sync\.authenticated((?!too short).)*$"):
        check(spec, "here", local=True)
