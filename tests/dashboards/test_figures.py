"""Figures show the runs' own numbers, and every label can be read."""

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from taugrad.dashboards import figures, palette
from taugrad.dashboards.runs import RunHistory, read_run

ITERATIONS = 630
RNG_SEED = 11


def history(
    name: str,
    rule: str,
    fractions: Any,
    *,
    accuracy: float = 0.97,
    wire_gb: float = 0.01,
    paper_gb: float = 0.005,
    start: int = 0,
) -> RunHistory:
    values = np.asarray(fractions, dtype=np.float64)
    return RunHistory(
        run_id=name,
        name=name,
        rule=rule,
        tau=None,
        params={},
        metrics={"comm/fraction": (np.arange(start, start + len(values)), values)},
        finals={"eval/accuracy": accuracy, "total/wire_gb": wire_gb, "total/paper_gb": paper_gb},
    )


@pytest.fixture
def four():
    rng = np.random.default_rng(RNG_SEED)
    steps = np.arange(ITERATIONS)
    noise = [np.exp(rng.normal(0, spread, ITERATIONS)) for spread in (0.2, 0.35, 0.15)]
    return [
        history("none", "none", np.ones(ITERATIONS), accuracy=0.9712, wire_gb=0.217, paper_gb=0.217),
        history(
            "wgt tau=0.001", "wgt", 0.09 * np.exp(-steps / 300) * noise[0] + 0.01, accuracy=0.968,
            wire_gb=0.0121, paper_gb=0.0102,
        ),
        history("bgt tau=0.01", "bgt", 0.005 * noise[1], accuracy=0.9631, wire_gb=0.0009, paper_gb=3.5e-5),
        history("qgt tau=0.002", "qgt", 0.03 * noise[2], accuracy=0.9689, wire_gb=0.0042, paper_gb=0.0016),
    ]  # fmt: skip


def lines(figure: Figure) -> list[Line2D]:
    return list(figure.axes[0].lines)


def line_with(figure: Figure, x: Any, y: Any) -> Line2D | None:
    for line in lines(figure):
        got_x, got_y = (np.asarray(data, dtype=float) for data in (line.get_xdata(), line.get_ydata()))
        if got_x.shape == np.shape(x) and np.allclose(got_x, x) and np.allclose(got_y, y):
            return line
    return None


# Fractions


def test_lines_are_the_histories_in_percent(four):
    figure = figures.fraction_per_iteration(four)
    for run in four:
        steps, values = run.metrics["comm/fraction"]
        line = line_with(figure, steps, 100 * values)
        assert line is not None, run.name
        assert line.get_color() == palette.RULES[run.rule].color


@pytest.mark.parametrize(
    "values",
    [[0.0] * 40, [0.5], [math.nan, 0.01, 0.02], [0.01, 0.02, math.nan], [0.02, 0.01, 0.0]],
    ids=["nothing sent", "one step", "begins with nan", "ends with nan", "ends with nothing"],
)
def test_unusual_histories_are_drawn(values):
    figure = figures.fraction_per_iteration([history("wgt", "wgt", values)])
    assert any(
        np.array_equal(line.get_ydata(), 100 * np.array(values), equal_nan=True) for line in lines(figure)
    )


# Accuracy


def test_points_are_the_runs_totals(four):
    figure = figures.value_against_mb(four)
    expected = {"none": (97.12, 217, 217), "wgt": (96.8, 12.1, 10.2), "bgt": (96.31, 0.9, 0.035),
                "qgt": (96.89, 4.2, 1.6)}  # fmt: skip
    for rule, (accuracy, wire, paper) in expected.items():
        filled = line_with(figure, [wire], [accuracy])
        assert filled is not None
        markers = [line for line in lines(figure) if line.get_marker() == palette.RULES[rule].marker]
        hollow = [line for line in markers if line.get_markerfacecolor() == "white"]
        assert [paper] in [pytest.approx(list(line.get_xdata())) for line in hollow]
        assert line_with(figure, [paper, wire], [accuracy, accuracy]) is not None


# Reading runs back


def test_a_run_is_read_back_whole_and_in_order(tmp_path, monkeypatch, new_store):
    mlflow = pytest.importorskip("mlflow")
    metric = mlflow.entities.Metric
    monkeypatch.chdir(tmp_path)
    client = mlflow.tracking.MlflowClient(tracking_uri=new_store(tmp_path))
    run = client.create_run(client.create_experiment("x"), run_name="first").info.run_id
    client.log_param(run, "compressor.kind", "wgt")
    client.log_param(run, "compressor.tau", "0.001")
    # Later steps first, and one more than MLflow's page.
    count = 25_001
    for start in range(0, count, 1000):
        batch = [
            metric("comm/fraction", i / count, 10**6 - i, i) for i in range(start, min(start + 1000, count))
        ]
        client.log_batch(run, metrics=batch)
    got = read_run(client, run, ["comm/fraction", "never/logged"])
    assert (got.run_id, got.name, got.rule, got.tau) == (run, "first", "wgt", 0.001)
    assert set(got.metrics) == {"comm/fraction"}
    steps, values = got.metrics["comm/fraction"]
    assert np.array_equal(steps, np.arange(count))
    assert np.array_equal(values, np.arange(count) / count)
    assert got.finals["comm/fraction"] == (count - 1) / count
    assert not got.is_baseline
