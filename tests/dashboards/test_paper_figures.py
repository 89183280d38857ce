"""The papers' figures: what is drawn is what MLflow holds."""

from dataclasses import replace
from typing import Any

import mlflow_data
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pictures import has_line

from taugrad.dashboards import figures, gallery, gradients, sweeps, timelines, verdict
from taugrad.dashboards.groups import by_setting
from taugrad.dashboards.palette import RULES
from taugrad.dashboards.runs import RunHistory, all_runs, compared_runs, with_histories
from taugrad.platform.tracking import names


@pytest.fixture(scope="module")
def groups(prepared):
    return by_setting(compared_runs(all_runs(prepared.client, prepared.experiment_id)))


@pytest.fixture(scope="module")
def shown(prepared, groups):
    runs = [group.runs[0] for group in verdict.representatives(groups)]
    return with_histories(prepared.client, runs, gallery.CURVES)


@pytest.fixture(scope="module")
def detailed(prepared, groups):
    run = next(group.runs[0] for group in groups if group.rule == "wgt")
    return with_histories(prepared.client, [run], gradients.layer_metrics(run))[0]


def held(prepared: Any, run_id: str, metric: str) -> tuple[list[int], list[float]]:
    """A history as MLflow has it."""
    points = sorted(prepared.client.get_metric_history(run_id, metric), key=lambda point: point.step)
    return [point.step for point in points], [point.value for point in points]


def panel(figure: Figure, heading: str) -> Axes:
    (axes_,) = [axes for axes in figure.axes if axes.get_title(loc="left") == heading]
    return axes_


def mean(runs: tuple[RunHistory, ...], metric: str) -> float:
    return sum(run.finals[metric] for run in runs) / len(runs)


def test_settings_are_points_at_their_means_with_both_seeds(groups):
    figure = sweeps.value_by_setting(groups)
    assert {axes.get_title(loc="left") for axes in figure.axes} == {
        g.rule for g in groups if not g.is_baseline
    }
    base = next(group for group in groups if group.is_baseline)
    for group in groups:
        if group.is_baseline:
            continue
        axes = panel(figure, group.rule)
        wire, accuracy = 1000 * mean(group.runs, "total/wire_gb"), 100 * mean(group.runs, "eval/accuracy")
        color = RULES[group.rule].color
        assert has_line(axes, [wire], [accuracy], color)
        both = sorted(100 * run.finals["eval/accuracy"] for run in group.runs)
        assert has_line(axes, [wire, wire], both, color)
        assert has_line(axes, [0, 1], [100 * mean(base.runs, "eval/accuracy")] * 2, "black")


def test_speed_and_compression_by_tau(groups):
    compression, seconds = sweeps.speed_and_compression(groups).axes
    wgt = sorted((group for group in groups if group.rule == "wgt"), key=lambda group: group.tau or 0)
    taus = [group.tau for group in wgt]
    base = next(group for group in groups if group.is_baseline)
    ratios = [mean(base.runs, "total/wire_gb") / mean(g.runs, "total/wire_gb") for g in wgt]
    assert has_line(compression, taus, ratios, RULES["wgt"].color)
    assert has_line(seconds, taus, [mean(g.runs, "total/seconds") for g in wgt], RULES["wgt"].color)
    assert compression.get_yscale() == "log"
    assert seconds.get_yscale() == "linear"


def test_floors_are_joined_where_tau_is_the_same():
    values = {("0", "1"): 0.90, ("0", "3"): 0.94, ("0.1", "1"): 0.91, ("0.1", "3"): 0.93}
    runs = [
        mlflow_data.made_up("entropy", value, **{"compressor.tau": tau, "compressor.floor": floor})
        for (tau, floor), value in values.items()
    ]
    axes = sweeps.value_by_floor(by_setting(runs)).axes[0]
    color = RULES["entropy"].color
    assert has_line(axes, [1, 3], [90, 94], color)
    assert has_line(axes, [1, 3], [91, 93], color)


def test_bits_by_epoch(prepared, shown):
    figure = figures.bits_per_epoch(shown)
    for run in shown:
        if run.is_baseline:
            continue
        axes = panel(figure, run.name)
        for metric in (names.EPOCH_BITS_PER_PARAM, names.EPOCH_VALUE_BITS_PER_PARAM):
            _, bits = held(prepared, run.run_id, metric)
            assert has_line(axes, range(1, len(bits) + 1), bits, RULES[run.rule].color)
        assert has_line(axes, [0, 1], [32, 32])


def test_percentiles_of_each_layer(prepared, detailed):
    figure = gradients.gradient_percentiles(detailed)
    assert len(figure.axes) == 3
    for axes in figure.axes:
        layer = axes.get_title(loc="left")
        for what in ("grad_p50", "grad_p90", "grad_p99", "grad_p999", "tau"):
            assert has_line(axes, *held(prepared, detailed.run_id, f"layer/{layer}/{what}")), (layer, what)


def test_bars_are_the_means_of_a_steps_parts(prepared, shown):
    axes = timelines.where_time_goes(shown).axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows[0] == "none"
    assert len(axes.patches) == 6 * len(shown)
    for run in shown:
        row = axes.get_yticks()[rows.index(style_name(run.name))]
        bars = [bar for bar in axes.patches if abs(bar.get_y() + bar.get_height() / 2 - row) < 0.5]
        means = {}
        for metric in ("data", "compute", "compress", "wait", "decompress", "overlap"):
            _, values = held(prepared, run.run_id, f"time/{metric}_s")
            means[metric] = 1000 * float(np.mean(values[len(values) // 10 :]))
        beside = means.pop("overlap")
        *parts, below = bars
        assert [bar.get_width() for bar in parts] == pytest.approx(list(means.values()))
        assert below.get_width() == pytest.approx(beside)


def style_name(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


def with_steps(run: RunHistory, workers: int = 2) -> timelines.RunTimeline:
    return timelines.RunTimeline(run, mlflow_data.timeline(workers))


def test_workers_are_rows_of_what_they_did_and_what_was_under_way(shown):
    actual = [with_steps(run) for run in shown[:2]]
    axes = timelines.steps_of_workers(actual).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["worker 0", "worker 1"] * 2
    headings = [f"{run.name}: steps 11 to 12" for run in shown[:2]]
    assert [text.get_text() for text in axes.texts] == headings
    boxes = [path.get_extents() for bars in axes.collections for path in bars.get_paths()]
    spans = [span for result in actual for worker in result.timeline.workers for span in worker]
    for lane in ("compute", "wire"):
        expected = sorted((1000 * span.began, 1000 * span.ended) for span in spans if span.lane == lane)
        found = {(round(box.x0, 6), round(box.x1, 6)) for box in boxes}
        assert {(round(began, 6), round(ended, 6)) for began, ended in expected} <= found
    many = timelines.steps_of_workers([with_steps(shown[0], workers=20)])
    assert len(many.axes[0].get_yticks()) == timelines.MOST_WORKERS
    assert many.axes[0].texts[0].get_text().endswith(": steps 11 to 12, 4 more workers")


def test_a_run_without_the_artifact_has_no_timeline(prepared, shown):
    client = prepared.client
    others = [client.create_run(client.create_experiment(f"bare {i}")).info.run_id for i in range(2)]
    client.log_text(others[1], "no trace", names.ARTIFACT_TIMELINE)
    bare = [replace(shown[0], run_id=run_id) for run_id in others]
    (timeline,) = timelines.read_timelines(client, [*bare, shown[0]])
    assert timeline.run is shown[0]
    assert timeline.timeline.steps == mlflow_data.timeline().steps
