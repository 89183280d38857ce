"""Where a step's time goes, in every mode: a worker that comes late makes the other one wait, not compute."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from cases import in_turn
from forked import run_workers
from times_process import LATE_S

from taugrad.platform.tracking.timeline import Timeline

WORKERS, ITERATIONS, STEPS = 2, 14, 3
BASE: dict[str, Any] = {
    "data": {"kind": "synthetic", "train_examples": 280, "test_examples": 20, "height": 20, "width": 20},
    "model": {"kind": "mlp", "widths": [12], "activation": "tanh"},
    "training": {
        "epochs": 1,
        "batch_size": 20,
        "optimizer": {"kind": "sgd", "lr": 1e-3, "momentum": 0},
    },
    "workers": {"count": WORKERS},
    "tracking": {"timeline": STEPS},
}
LINE = "topk(0.3) | packed32"
HYBRID = BASE | {"model": {"kind": "lenet"}, "data": BASE["data"] | {"height": 28, "width": 28}}
MODES: dict[str, dict[str, Any]] = {
    "none": BASE,
    "allgather": BASE | {"compressor": LINE},
    "powersgd": BASE | {"compressor": "powersgd(1, start=2)"},
    "ring": BASE | {"compressor": LINE, "sync": {"mode": "ring"}},
    "parameter_server": BASE | {"compressor": LINE, "sync": {"mode": "parameter_server"}},
    "sharded": BASE | {"compressor": LINE, "sync": {"mode": "sharded"}},
    "weights": BASE | {"compressor": LINE, "sync": {"mode": "weights", "every": 2}},
    "hybrid": HYBRID | {"sync": {"mode": "hybrid"}},
    "async": BASE | {"compressor": LINE, "sync": {"mode": "async", "most_behind": 0}},
}
"""By name, a spec; in `async` nobody may be ahead, so that each step waits."""
EVERY_MODE = in_turn("mode", MODES)

Found = dict[str, list[dict[str, Any]]]
"""By mode, what each worker found."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("times")
    (folder / "specs.json").write_text(json.dumps(MODES))
    (folder / "clock").write_bytes(bytes(16))
    script = Path(__file__).with_name("times_process.py")
    run_workers(script, lambda rank: (rank, WORKERS, folder), WORKERS, timeout_s=240)
    ranks = [json.loads((folder / f"times_{rank}.json").read_text()) for rank in range(WORKERS)]
    return {mode: [rank[mode] for rank in ranks] for mode in MODES}


def of_exchanges(steps: list[dict[str, float]], what: str) -> list[float]:
    """Seconds of the steps in which something was exchanged, but the first ones."""
    return [step[what] for step in steps[4:] if step["wire_bytes"]]


def middle(steps: list[dict[str, float]], what: str) -> float:
    return statistics.median(of_exchanges(steps, what))


@EVERY_MODE
def test_a_late_worker_makes_the_other_one_wait(found: Found, mode: str) -> None:
    on_time, late = (rank["steps"] for rank in found[mode])
    # In `weights` a worker comes late to each of the two steps that an exchange is made of.
    lateness = LATE_S * (2 if mode == "weights" else 1)
    assert middle(on_time, "wait") > 0.5 * lateness
    assert middle(on_time, "compute") < 0.5 * LATE_S
    assert middle(late, "wait") < 0.5 * lateness
    assert middle(late, "compute") > 0.5 * LATE_S


@EVERY_MODE
def test_the_parts_of_a_step_add_up_to_it(found: Found, mode: str) -> None:
    logged = found[mode][0]["logged"]
    assert len(logged) == ITERATIONS
    for metrics in logged:
        parts = [metrics[f"time/{part}_s"] for part in ("data", "compute", "compress", "wait", "decompress")]
        assert sum(parts) == pytest.approx(metrics["time/step_s"], rel=1e-6)
        assert min(parts) >= 0
        assert 0 <= metrics["time/overlap_s"] <= metrics["time/exchange_s"]


@EVERY_MODE
def test_bandwidth_is_what_was_handed_over_in_the_time_of_the_exchange(found: Found, mode: str) -> None:
    for metrics in found[mode][0]["logged"]:
        if not metrics["comm/wire_bytes"]:
            assert "net/mbit_s" not in metrics
            continue
        seconds = metrics["time/step_s" if mode == "async" else "time/exchange_s"]
        bits = 8 * metrics["comm/wire_bytes"] / WORKERS
        assert metrics["net/mbit_s"] == pytest.approx(bits / seconds / 1e6)
        received = 8 * metrics["comm/received_bytes"]
        assert metrics["net/received_mbit_s"] == pytest.approx(received / seconds / 1e6)
    exchanges = sum("net/mbit_s" in metrics for metrics in found[mode][0]["logged"])
    assert exchanges == (ITERATIONS // 2 if mode == "weights" else ITERATIONS)


@EVERY_MODE
def test_the_timeline_shows_the_late_worker_sleep_and_the_other_one_wait(found: Found, mode: str) -> None:
    assert found[mode][0]["timeline"] == found[mode][1]["timeline"]
    timeline = Timeline.from_json(found[mode][0]["timeline"])
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
