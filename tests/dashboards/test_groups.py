"""Seeds taken together, against the textbook's numbers."""

import math
from dataclasses import replace

import pytest

from taugrad.dashboards.groups import by_setting, estimate
from taugrad.dashboards.runs import RunHistory


def run(name: str, rule: str, accuracy: float, ratio: float, **params: str) -> RunHistory:
    tau = params.get("compressor.tau")
    return RunHistory(
        name,
        name,
        rule,
        float(tau) if tau else None,
        {"compressor.kind": rule, **params},
        {},
        {"eval/accuracy": accuracy, "total/wire_gb": 1 / ratio, "total/compression_ratio": ratio},
    )


def test_the_interval_is_students():
    # Mean 5, standard deviation 2, n = 4: t(0.975, 3) = 3.182446.
    got = estimate([3.0, 4.0, 5.0, 8.0])
    deviation = math.sqrt((4 + 1 + 0 + 9) / 3)
    assert got.mean == 5
    assert got.spread == pytest.approx(3.182446 * deviation / 2, rel=1e-6)
    assert got.count == 4


def test_runs_that_differ_in_seed_name_and_storage_are_one_setting():
    runs = [
        run("a", "wgt", 0.9, 20, **{"compressor.tau": "0.01", "seed": "0", "storage": "x"}),
        run("b", "wgt", 0.8, 30, **{"compressor.tau": "0.01", "seed": "1", "tracking.layer_interval": "5"}),
        run("c", "wgt", 0.8, 30, **{"compressor.tau": "0.02", "seed": "0"}),
        run("d", "none", 0.9, 1, seed="0"),
    ]
    found = by_setting(runs)
    assert [[r.name for r in group.runs] for group in found] == [["d"], ["a", "b"], ["c"]]
    assert found[1].estimate("eval/accuracy", 100).mean == pytest.approx(85)


def test_a_run_that_was_stopped_early_is_left_out():
    kept, stopped = (
        replace(each, finals={**each.finals, "epoch": epoch})
        for epoch in (4.0, 2.0)
        for each in [run("a", "wgt", 0.9, 20, **{"training.epochs": "4"})]
    )
    (group,) = by_setting([kept, stopped])
    assert group.runs == (kept,)
    assert by_setting([stopped]) == []
