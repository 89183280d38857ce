"""Where a step's time goes, in every mode: a worker that comes late makes the other one wait, not compute.

Worker 1 comes late to every step: it holds on until worker 0 does nothing but wait for it. Then the clock of
both goes on by LATE_S, a time that no machine is busy for.
"""

import os
import statistics
import sys
import time
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from cases import in_turn
from group import run_group
from plain import sgd, small
from recorder import trainer_of

from taugrad.platform.synchronization.ledger import Iteration
from taugrad.platform.tracking.timeline import Timeline

WORKERS, ITERATIONS, STEPS = 2, 14, 3
BASE = small(280, 20, 20, epochs=1, batch_size=20, optimizer=sgd(1e-3)) | {
    "workers": {"count": WORKERS},
    "tracking": {"timeline": STEPS},
}
LINE = "topk(0.3) | packed32"
HYBRID = BASE | {"model": {"kind": "lenet"}, "data": BASE["data"] | {"height": 28, "width": 28}}
MODES: dict[str, dict[str, Any]] = {
    "none": BASE,
    "allgather": BASE | {"compressor": LINE},
    "powersgd": BASE | {"compressor": "powersgd(1, start=2)"},
    **{
        mode: BASE | {"compressor": LINE, "sync": {"mode": "gradients", "pattern": mode}}
        for mode in ("ring", "parameter_server", "sharded")
    },
    "weights": BASE | {"compressor": LINE, "sync": {"mode": "weights", "every": 2}},
    "hybrid": HYBRID | {"sync": {"mode": "hybrid"}},
    "async": BASE | {"compressor": LINE, "sync": {"mode": "async", "most_behind": 0}},
}
"""By name, a spec; in `async` nobody may be ahead, so that each step waits."""
EVERY_MODE = in_turn("mode", MODES)

LATE_S = 1000.0
LOOKS = 8


class Clock:
    """The real one, and LATE_S more each time that worker 1 was late."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._shared = np.memmap(folder / "clock", np.int64, "r+", shape=2)
        if rank == 0:
            self._shared[1] = os.getpid()
        self._real = {kind: getattr(time, kind) for kind in ("perf_counter", "time")}
        ours = [module for name, module in sys.modules.items() if name.startswith("taugrad.")]
        for kind, real in self._real.items():
            for module in [*ours, time]:  # those that have it, and those that take it later
                if getattr(module, kind, None) is real:
                    setattr(module, kind, getattr(self, kind))

    def perf_counter(self) -> float:
        return self._real["perf_counter"]() + LATE_S * int(self._shared[0])

    def time(self) -> float:
        return self._real["time"]() + LATE_S * int(self._shared[0])

    def be_late(self) -> None:
        """Holds on until the thread that trains in worker 0 sleeps, whenever one looks."""
        asleep = 0
        while asleep < LOOKS:
            stat = Path(f"/proc/{self._shared[1]}/stat").read_text()
            asleep = asleep + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
            sleep(0.002)
        self._shared[0] += 1


def run(spec: dict[str, Any], clock: Clock) -> dict[str, Any]:
    trainer = trainer_of(spec)
    iterate, steps, seconds = trainer.sync.iterate, [], []

    def late(*arguments: Any) -> Iteration:
        began = clock.perf_counter()
        if dist.get_rank() == 1:
            clock.be_late()
        iteration = iterate(*arguments)
        seconds.append(clock.perf_counter() - began)
        steps.append(iteration.step)
        return iteration

    trainer.sync.iterate = late  # type: ignore[method-assign]
    trainer.fit()
    timeline = trainer.recording.gathered()
    return {
        "steps": [
            {
                "wait": step.blocked_s,
                "compute": took - step.compress_s - step.blocked_s - step.decode_s,
                "wire_bytes": step.wire_bytes,
            }
            for step, took in zip(steps, seconds, strict=True)
        ],
        "logged": [metrics for _, metrics in trainer.listener.logged if "train/loss" in metrics],
        "timeline": None if timeline is None else timeline.to_json(),
    }


def work(rank: int, _workers: int, folder: Path) -> dict[str, dict[str, Any]]:
    clock = Clock(folder, rank)
    dist.barrier()
    return {name: run(spec, clock) for name, spec in MODES.items()}


Found = dict[str, list[dict[str, Any]]]
"""By mode, what each worker found."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("times")
    (folder / "clock").write_bytes(bytes(16))
    ranks = run_group("test_step_times", "work", WORKERS, folder, timeout_s=240)
    return {mode: [rank[mode] for rank in ranks] for mode in MODES}


def middle(steps: list[dict[str, float]], what: str) -> float:
    """Seconds of the steps in which something was exchanged, but the first ones."""
    return statistics.median(step[what] for step in steps[4:] if step["wire_bytes"])


@EVERY_MODE
def test_a_late_worker_makes_the_other_one_wait(runs, mode):
    on_time, late = (rank["steps"] for rank in runs[mode])
    # In `weights` a worker comes late to each of the two steps that an exchange is made of.
    lateness = LATE_S * (2 if mode == "weights" else 1)
    assert middle(on_time, "wait") > 0.5 * lateness
    assert middle(on_time, "compute") < 0.5 * LATE_S
    assert middle(late, "wait") < 0.5 * lateness
    assert middle(late, "compute") > 0.5 * LATE_S


@EVERY_MODE
def test_the_parts_of_a_step_add_up_to_it(runs, mode):
    logged = runs[mode][0]["logged"]
    assert len(logged) == ITERATIONS
    for metrics in logged:
        parts = [metrics[f"time/{part}_s"] for part in ("data", "compute", "compress", "wait", "decompress")]
        assert sum(parts) == pytest.approx(metrics["time/step_s"], rel=1e-6)
        assert min(parts) >= 0
        assert 0 <= metrics["time/overlap_s"] <= metrics["time/exchange_s"]


@EVERY_MODE
def test_bandwidth_is_what_was_handed_over_in_the_time_of_the_exchange(runs, mode):
    for metrics in runs[mode][0]["logged"]:
        if not metrics["comm/wire_bytes"]:
            assert "net/mbit_s" not in metrics
            continue
        seconds = metrics["time/step_s" if mode == "async" else "time/exchange_s"]
        bits = 8 * metrics["comm/wire_bytes"] / WORKERS
        assert metrics["net/mbit_s"] == pytest.approx(bits / seconds / 1e6)
        received = 8 * metrics["comm/received_bytes"]
        assert metrics["net/received_mbit_s"] == pytest.approx(received / seconds / 1e6)
    exchanges = sum("net/mbit_s" in metrics for metrics in runs[mode][0]["logged"])
    assert exchanges == (ITERATIONS // 2 if mode == "weights" else ITERATIONS)


@EVERY_MODE
def test_the_timeline_shows_the_late_worker_sleep_and_the_other_one_wait(runs, mode):
    assert runs[mode][0]["timeline"] == runs[mode][1]["timeline"]
    timeline = Timeline.from_json(runs[mode][0]["timeline"])
    assert [number for number, _ in timeline.steps] == ["11", "12", "13"]
    for spans in timeline.workers:
        kinds = {span.name for span in spans}
        assert {"step", "data", "forward", "backward"} <= kinds
        assert ("optimizer" in kinds) == (mode != "async")  # nobody has one there
        assert ("compress" in kinds) == (mode != "none")
        on_wire = {span.name for span in spans if span.lane == "wire"}
        assert ("exchange" in on_wire) == (mode != "async")  # nothing there begins when it is asked for
    on_time = [span for span in timeline.workers[0] if span.name == "wait" and span.lane == "compute"]
    late = [span for span in timeline.workers[1] if span.name == "wait" and span.lane == "compute"]
    waited, waited_late = (sum(span.ended - span.began for span in spans) for spans in (on_time, late))
    assert waited > 0.5 * LATE_S * (STEPS - 1)
    assert waited_late < waited
    # On one clock: what worker 0 waits for last comes after worker 1's forward pass of step 12.
    (step,) = [span for span in timeline.workers[1] if (span.name, span.about) == ("step", "12")]
    forward = [span.ended for span in timeline.workers[1] if span.name == "forward"]
    assert max(span.ended for span in on_time) > max(end for end in forward if end < step.ended)
