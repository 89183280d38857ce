"""The papers' figures: what is drawn is what MLflow holds, and every word lies in the picture."""

import itertools
import math
from dataclasses import replace
from typing import Any

import mlflow_data
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from pictures import drawn, has_line

from taugrad.dashboards import (
    figures,
    gallery,
    gradients,
    style,
    sweeps,
    timelines,
    verdict,
)
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
        for before, after in itertools.pairwise(parts):
            assert after.get_x() == pytest.approx(before.get_x() + before.get_width())
        assert parts[0].get_x() == 0
        # What was under way ends where the waiting for it begins.
        assert below.get_width() == pytest.approx(beside)
        assert below.get_x() + below.get_width() == pytest.approx(parts[3].get_x())
        assert below.get_y() >= parts[0].get_y() + parts[0].get_height() - 1e-9  # the axis points down


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
    bars = [box for box in boxes if box.width]
    lanes = {}
    rows = axes.get_yticks()
    for row, spans in zip(
        rows, (spans for result in actual for spans in result.timeline.workers), strict=True
    ):
        in_row = [box for box in bars if row - 0.45 < box.y0 and box.y1 < row + 0.45]
        for lane in ("compute", "wire"):
            expected = sorted((1000 * span.began, 1000 * span.ended) for span in spans if span.lane == lane)
            places = {(box.y0, box.y1) for box in in_row}
            upper = max(y1 for _, y1 in places) if lane == "wire" else min(y1 for _, y1 in places)
            bars_drawn = sorted((box.x0, box.x1) for box in in_row if box.y1 == upper)
            assert np.allclose(bars_drawn, expected)
            lanes[lane] = upper - row
        begins = [box.x0 for box in boxes if not box.width and row - 0.5 < box.y0 and box.y1 < row + 0.5]
        assert sorted(begins) == pytest.approx([1e3 * s.began for s in spans if s.name == "step"])
    assert lanes["compute"] < lanes["wire"]  # the axis points down
    assert rows[0] < rows[-1] < axes.get_ylim()[0]
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


def test_every_word_lies_in_the_picture_and_no_tick_label_touches_another(
    groups, shown, detailed, monkeypatch
):
    monkeypatch.setattr(gallery.Picture, "_png", drawn)
    pictures = gallery.gallery(groups, shown, detailed, timelines=[with_steps(run) for run in shown[:2]])
    assert len(pictures) == 13
    for picture, page in itertools.product(pictures, (style.WIDE, style.NARROW)):
        figure = picture.draw(page)
        figure.canvas.draw()
        renderer, hidden = figure.canvas.get_renderer(), hidden_ticks(figure)  # type: ignore[attr-defined]
        boxes = {
            text: Text.get_window_extent(text, renderer)
            for text in figure.findobj(Text)
            if isinstance(text, Text) and text.get_text() and text.get_visible() and text not in hidden
        }
        frame = figure.bbox.padded(1)
        for text, box in boxes.items():
            if all(map(math.isfinite, (box.x0, box.y0, box.x1, box.y1))):
                assert frame.x0 <= box.x0 <= box.x1 <= frame.x1, (picture.key, text.get_text())
                assert frame.y0 <= box.y0 <= box.y1 <= frame.y1, (picture.key, text.get_text())
        labels = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)
                  for label in axis.get_ticklabels()}  # fmt: skip
        for one, other in itertools.combinations(boxes.keys() & labels, 2):
            assert not boxes[one].overlaps(boxes[other]), (picture.key, one.get_text(), other.get_text())


def hidden_ticks(figure: Figure) -> set[Text]:
    """The labels of ticks outside an axis' limits, which exist and are not drawn, and of small ticks."""
    results: set[Text] = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            outside = [
                tick
                for tick, at in zip(axis.get_major_ticks(), axis.get_majorticklocs(), strict=False)
                if not min(limits) <= at <= max(limits)
            ]
            results |= {
                label for tick in [*outside, *axis.get_minor_ticks()] for label in (tick.label1, tick.label2)
            }
    return results
