"""Figures show the runs' own numbers, and every label can be read."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import has_line

from taugrad.dashboards import figures, palette
from taugrad.dashboards.histories import over_rounds, thinned
from taugrad.dashboards.runs import RunHistory, read_run
from taugrad.dashboards.search_figures import FrontPoint, search_front
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names

FINALS = {
    "none": (0.9712, 0.217, 0.217),
    "wgt": (0.968, 0.0121, 0.0102),
    "bgt": (0.9631, 0.0009, 3.5e-5),
    "qgt": (0.9689, 0.0042, 0.0016),
}
"""By rule: accuracy, GB on the wire, and GB as the papers count."""


def history(rule: str, fractions: Any, accuracy=0.97, wire_gb=0.01, paper_gb=0.005) -> RunHistory:
    values = np.asarray(fractions, dtype=np.float64)
    metrics = {"comm/fraction": (np.arange(len(values)), values)}
    finals = {"eval/accuracy": accuracy, "total/wire_gb": wire_gb, "total/paper_gb": paper_gb}
    return RunHistory(rule, rule, rule, None, {}, metrics, finals)


@pytest.fixture
def four():
    rng = np.random.default_rng(11)
    return [history(rule, np.exp(rng.normal(-4, 0.3, 630)), *finals) for rule, finals in FINALS.items()]


# Fractions


@pytest.mark.parametrize(
    "values",
    [[0.0] * 40, [0.5], [math.nan, 0.01, 0.02], [0.01, 0.02, math.nan], [0.02, 0.01, 0.0]],
    ids=["nothing sent", "one step", "begins with nan", "ends with nan", "ends with nothing"],
)
def test_unusual_histories_are_drawn(values):
    (axes,) = figures.fraction_per_iteration([history("wgt", values)]).axes
    assert has_line(axes, range(len(values)), 100 * np.array(values), palette.RULES["wgt"].color)


# Accuracy


def test_points_are_the_runs_totals(four):
    (axes,) = figures.value_against_mb(four).axes
    for rule, finals in FINALS.items():
        accuracy, wire, paper = np.array(finals) * (100, 1000, 1000)
        assert has_line(axes, [wire], [accuracy])
        markers = [line for line in axes.lines if line.get_marker() == palette.RULES[rule].marker]
        hollow = [line for line in markers if line.get_markerfacecolor() == "white"]
        assert [paper] in [pytest.approx(list(line.get_xdata())) for line in hollow]
        assert has_line(axes, [paper, wire], [accuracy, accuracy])


# Fronts of searches


def points_of(axes):
    """Every point of every line."""
    return {(float(x), float(y)) for line in axes.lines for x, y in zip(*line.get_data(), strict=True)}


BASELINE = FrontPoint("none", 97.0, None, 100.0)
POINTS = [
    FrontPoint("strom", 40.0, None, 0.01, place=1),
    FrontPoint("strom", 95.0, (94.5, 95.5), 0.5, place=2, best=True),
    FrontPoint("wgt", 94.0, None, 2.0),
    FrontPoint("wgt", 96.5, None, 5.0, place=3),
]


def test_the_front_and_what_it_beats_are_drawn():
    (axes,) = search_front("mine", POINTS, BASELINE, ACCURACY).axes
    points = points_of(axes)
    assert {(0.5, 95.0), (2.0, 94.0), (5.0, 96.5), (100.0, 97.0)} <= points
    assert (5.0, 95.0) in points  # the front's step
    low, high = axes.get_ylim()
    assert low < 94.0
    assert high > 97.0
    assert {text.get_text() for text in axes.texts} >= {"2: strom 95.00%, best", "3: wgt 96.50%"}


def test_points_that_hardly_learned_are_named_and_not_drawn():
    figure = search_front("mine", POINTS, BASELINE, ACCURACY)
    (axes,) = figure.axes
    assert axes.get_ylim()[0] > 40.0
    assert axes.get_xlim()[0] > 0.01
    assert (0.01, 40.0) not in points_of(axes)
    said = " ".join(text.get_text() for text in figure.texts)
    assert "1 more below the axis (of the front 1)" in " ".join(said.split())


def test_local_steps_are_averaged_from_exchange_to_exchange():
    """Every fourth step sends a tenth: 2.5% throughout, and no barcode."""
    steps = np.arange(1, 42)
    values = np.where(steps % 4 == 1, 0.1, 0.0)
    got_steps, got = over_rounds((steps, values))
    assert np.allclose(got, 0.025)
    assert got_steps.tolist() == list(range(5, 42, 4))
    dense = (steps, np.where(steps % 4 == 0, 0.0, 0.1))
    assert over_rounds(dense) is dense


# Lines of many points


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=300), st.integers(4, 60))
def test_a_thinned_line_is_a_part_of_it_with_both_extremes(values, most):
    steps, array = np.arange(len(values)) * 3, np.array(values)
    got_steps, got = thinned((steps, array), most)
    assert len(got) <= max(most, 1)
    assert np.all(np.diff(got_steps) > 0)
    assert np.array_equal(got, array[got_steps // 3], equal_nan=True)
    assert {got_steps[0], got_steps[-1]} == {steps[0], steps[-1]}
    finite = array[~np.isnan(array)]
    if finite.size and len(values) > most and not np.isnan(array).any():
        assert got.max() == finite.max()
        assert got.min() == finite.min()


# Reading runs back


def test_a_run_is_read_back_whole_and_in_order(tmp_path, monkeypatch, new_store):
    mlflow = pytest.importorskip("mlflow")
    metric = mlflow.entities.Metric
    monkeypatch.chdir(tmp_path)
    client = mlflow.tracking.MlflowClient(tracking_uri=new_store(tmp_path))
    tags = {names.TAG_METRIC: ACCURACY.to_json()}
    run = client.create_run(client.create_experiment("x"), run_name="first", tags=tags).info.run_id
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
