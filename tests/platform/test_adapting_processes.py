"""Real workers that follow a link whose seconds are reckoned: alike, exactly resumed, and within 50 steps."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from adapt_process import COMPUTE_S, DELAY_S, FASTER_FROM, LATE, SLOWER_FROM, STEPS, rate_at
from cases import in_turn
from forked import run_workers

WORKERS, MIDDLE, FOLLOWS, WAIT = 2, 64, 50, 0.2
BASE: dict[str, Any] = {
    "data": {"kind": "synthetic", "train_examples": 3000, "test_examples": 20, "height": 28, "width": 28},
    "model": {"kind": "mlp", "widths": [200], "activation": "tanh"},
    "training": {
        "iterations": STEPS,
        "batch_size": 20,
        "optimizer": {"kind": "sgd", "lr": 1e-3, "momentum": 0},
    },
    "workers": {"count": WORKERS},
    "checkpoint": {"interval": MIDDLE},
}
ALLGATHER: dict[str, Any] = {"mode": "allgather", "adapt": {}}
WEIGHTS: dict[str, Any] = {"mode": "weights", "every": 2, "adapt": {}}
SPECS: dict[str, dict[str, Any]] = {
    "density": BASE | {"compressor": "strom(density(0.01)) | golomb_rice", "sync": ALLGATHER},
    "topk": BASE | {"compressor": "topk(0.01)", "sync": ALLGATHER},
    "local steps": BASE
    | {
        "compressor": "chunked_topk(keep=40)",
        "sync": WEIGHTS | {"pattern": "sharded", "adapt": {"local_steps": [1, 12]}},
    },
}
EVERY = in_turn("name", SPECS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """By name, what each worker found."""
    folder = tmp_path_factory.mktemp("adapting")
    (folder / "specs.json").write_text(json.dumps(SPECS))
    script = Path(__file__).with_name("adapt_process.py")
    run_workers(script, lambda rank: (rank, WORKERS, folder), WORKERS, timeout_s=240)
    ranks = [torch.load(folder / f"result_{rank}.pt", weights_only=True) for rank in range(WORKERS)]
    return {name: [rank[name] for rank in ranks] for name in SPECS}


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@EVERY
def test_workers_decide_alike_and_replicas_stay_equal(found: Any, name: str) -> None:
    one, other = found[name]
    assert same(one["weights"], other["weights"])
    assert one["steps"] == other["steps"]
    assert one["adapter"] == other["adapter"]
    assert len({(density, local_steps) for _, density, local_steps, _ in one["steps"]}) > 3


@EVERY
def test_resumed_in_the_middle_everything_is_the_same(found: Any, name: str) -> None:
    for worker in found[name]:
        resumed = worker["resumed"]
        assert worker["steps"][MIDDLE:] == resumed["steps"]
        assert [each for each in worker["decided"] if each[0] > MIDDLE] == resumed["decided"]
        for what in ("weights", "own", "adapter", "totals"):
            assert same(worker[what], resumed[what]), what


@EVERY
def test_a_change_of_the_link_is_followed_within_50_steps(found: Any, name: str) -> None:
    steps = found[name][0]["steps"]
    lower, upper = SPECS[name]["sync"]["adapt"].get("density", (0.0005, 0.1))
    for changed, until in ((SLOWER_FROM, FASTER_FROM), (FASTER_FROM, STEPS)):
        after = steps[changed + FOLLOWS : until]
        sent = [nbytes for *_, nbytes in after if nbytes]
        _, density, local_steps, _ = after[-1]
        if not sent:
            continue  # the next exchange is later
        waits = DELAY_S + mean(sent) / rate_at(changed)
        share = waits / (waits + LATE * COMPUTE_S * local_steps)
        assert share < 2 * WAIT or density == lower, (changed, share, density)
        assert share > WAIT / 2 or density == upper, (changed, share, density)
    slow, fast = steps[FASTER_FROM - 1], steps[-1]
    assert slow[1] / slow[2] < 0.5 * fast[1] / fast[2]


def test_decisions_are_logged(found: Any) -> None:
    decided = found["local steps"][0]["decided"]
    assert len(decided) >= (STEPS - 1) // 12
    for _, metrics in decided:
        assert set(metrics) == {
            f"adapt/{what}" for what in ("density", "local_steps", "rate_mbit_s", "delay_s", "wait_share")
        }
    for rate, until in ((rate_at(0), SLOWER_FROM), (rate_at(SLOWER_FROM), FASTER_FROM)):
        latest = [metrics for number, metrics in decided if number <= until][-1]
        assert latest["adapt/rate_mbit_s"] == pytest.approx(8 * rate / 1e6, rel=0.2)
