"""Real workers that follow a link: alike, exactly resumed, and within 50 steps.

What a step took is not measured but reckoned: computing takes COMPUTE_S, a message DELAY_S and its bytes over
a rate, which changes in mid-run.
"""

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch.distributed as dist
from bits import same
from cases import in_turn
from group import run_group
from plain import sgd, small
from recorder import saved_in, trainer_of

from taugrad.compressors import Step
from taugrad.platform.synchronization.adapting.adapter import Measured
from taugrad.platform.synchronization.ledger import Iteration

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


WORKERS, MIDDLE, FOLLOWS, WAIT = 2, 64, 50, 0.2
BASE = small(3000, 20, 28, iterations=STEPS, batch_size=20, optimizer=sgd(1e-3)) | {
    "model": {"kind": "mlp", "widths": [200], "activation": "tanh"},
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


class Watched:
    """A trainer whose link is reckoned; keeps what was in force in every step."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.trainer = trainer_of(spec, folder)
        sync = self.trainer.sync
        self.sync, self.adapter = sync, sync.adapter
        self.adapter.measure = self.measure
        self.steps: list[tuple[int, float, int, float]] = []
        iterate = sync.iterate

        def watched(*arguments: Any) -> Iteration:
            choice = self.adapter.choice
            iteration = iterate(*arguments)
            nbytes = iteration.step.received_bytes
            self.steps.append((self.trainer.done, choice.density, choice.local_steps, nbytes))
            return iteration

        sync.iterate = watched  # type: ignore[method-assign]

    def measure(self, step: Step, seconds: float) -> Measured:
        assert seconds > 0
        compute_s = COMPUTE_S * (LATE if self.sync.ranks[0] == 1 else 1.0)
        nbytes = step.received_bytes
        if not nbytes:
            return Measured(compute_s, 0.0, 0.0, 0.0)
        exchange_s = DELAY_S + nbytes / rate_at(self.trainer.done) + LATE * COMPUTE_S - compute_s
        return Measured(compute_s, exchange_s, exchange_s, nbytes)

    def result(self) -> dict[str, Any]:
        self.trainer.fit()
        return {
            "weights": {name: tensor.clone() for name, tensor in self.trainer.model.state_dict().items()},
            "own": self.sync.worker_state(),
            "adapter": self.adapter.shared_state(),
            "totals": self.sync.totals.state_dict(),
            "steps": self.steps,
            "decided": [
                (number, {name: value for name, value in metrics.items() if name.startswith("adapt/")})
                for number, metrics in self.trainer.listener.logged
                if "adapt/density" in metrics
            ],
        }


def run(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    whole = Watched(spec, folder).result()
    again = Watched(spec, folder / "resumed")
    again.trainer.resume(saved_in(folder / str(MIDDLE), dist.get_rank()))
    return whole | {"resumed": again.result()}


def work(_rank: int, _workers: int, folder: Path) -> dict[str, dict[str, Any]]:
    """In each worker: every run to its end, then again from the checkpoint in its middle."""
    return {name: run(spec, folder / name) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By name, what each worker found."""
    folder = tmp_path_factory.mktemp("adapting")
    ranks = run_group("test_adapting_processes", "work", WORKERS, folder, timeout_s=240)
    return {name: [rank[name] for rank in ranks] for name in SPECS}


@EVERY
def test_workers_decide_alike_and_replicas_stay_equal(runs, name):
    one, other = runs[name]
    assert same(one["weights"], other["weights"])
    assert [step[:-1] for step in one["steps"]] == [step[:-1] for step in other["steps"]]
    assert one["adapter"] == other["adapter"]
    assert len({(density, local_steps) for _, density, local_steps, _ in one["steps"]}) > 3


@EVERY
def test_resumed_in_the_middle_everything_is_the_same(runs, name):
    for worker in runs[name]:
        resumed = worker["resumed"]
        assert worker["steps"][MIDDLE:] == resumed["steps"]
        assert [decision for decision in worker["decided"] if decision[0] > MIDDLE] == resumed["decided"]
        for what in ("weights", "own", "adapter", "totals"):
            assert same(worker[what], resumed[what]), what


@EVERY
def test_a_change_of_the_link_is_followed_within_50_steps(runs, name):
    steps = runs[name][0]["steps"]
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


def test_decisions_are_logged(runs):
    decided = runs["local steps"][0]["decided"]
    assert len(decided) >= (STEPS - 1) // 12
    for _, metrics in decided:
        assert set(metrics) == {
            f"adapt/{what}" for what in ("density", "local_steps", "rate_mbit_s", "delay_s", "wait_share")
        }
    for rate, until in ((rate_at(0), SLOWER_FROM), (rate_at(SLOWER_FROM), FASTER_FROM)):
        latest = [metrics for number, metrics in decided if number <= until][-1]
        assert latest["adapt/rate_mbit_s"] == pytest.approx(8 * rate / 1e6, rel=0.2)
