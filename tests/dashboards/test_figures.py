"""Figures show the runs' own numbers, and every label can be read."""

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from taugrad.dashboards import figures, labelling, palette, style
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
def four() -> list[RunHistory]:
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


def crowd(count: int) -> list[RunHistory]:
    """Runs that end at almost the same place."""
    return [
        history(
            f"a rather long name of run {i}", "wgt", np.full(20, 0.03 + i * 1e-5), wire_gb=0.007 + i * 1e-5
        )
        for i in range(count)
    ]


def drawn(figure: Figure) -> Figure:
    figure.canvas.draw()
    return figure


def lines(figure: Figure) -> list[Line2D]:
    return list(figure.axes[0].lines)


def line_with(figure: Figure, x: Any, y: Any) -> Line2D | None:
    for line in lines(figure):
        got_x, got_y = (np.asarray(data, dtype=float) for data in (line.get_xdata(), line.get_ydata()))
        if got_x.shape == np.shape(x) and np.allclose(got_x, x) and np.allclose(got_y, y):
            return line
    return None


def notes(figure: Figure) -> list[Annotation]:
    return [child for child in figure.axes[0].texts if isinstance(child, Annotation)]


def box(text: Text) -> Bbox:
    renderer = text.figure.canvas.get_renderer()  # type: ignore[union-attr]
    return Text.get_window_extent(text, renderer)


def heading(figure: Figure) -> Text:
    text = figure._suptitle  # type: ignore[attr-defined]
    assert isinstance(text, Text)
    return text


def assert_readable(figure: Figure) -> None:
    """Every text lies inside the figure; no label covers another text."""
    drawn(figure)
    axes = figure.axes[0]
    ticks = [
        label
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        if low <= tick <= high
    ]
    others = [*figure.texts, heading(figure), axes.xaxis.label, axes.yaxis.label]
    frame = figure.bbox
    unique = {id(text): text for text in [*notes(figure), *others, *ticks] if text.get_text()}
    for text in unique.values():
        extent = box(text)
        assert frame.x0 <= extent.x0 < extent.x1 <= frame.x1, text.get_text()
        assert frame.y0 <= extent.y0 < extent.y1 <= frame.y1, text.get_text()
    for a, b in itertools.combinations(unique.values(), 2):
        assert not Bbox.intersection(box(a), box(b)), (a.get_text(), b.get_text())


def by_text(figure: Figure, start: str) -> Annotation:
    (found,) = [note for note in notes(figure) if note.get_text().startswith(start)]
    return found


# Fractions


def test_lines_are_the_histories_in_percent(four: list[RunHistory]) -> None:
    figure = figures.fraction_per_iteration(four)
    for run in four:
        steps, values = run.metrics["comm/fraction"]
        line = line_with(figure, steps, 100 * values)
        assert line is not None, run.name
        assert line.get_color() == palette.RULES[run.rule].color


def test_a_noisy_line_gets_its_median_and_a_quiet_one_does_not(four: list[RunHistory]) -> None:
    figure = figures.fraction_per_iteration(four[:2])
    steps, values = four[1].metrics["comm/fraction"]
    assert len(lines(figure)) == 3
    light = line_with(figure, steps, 100 * values)
    assert light is not None
    assert light.get_alpha() is not None
    (strong,) = [
        line for line in lines(figure) if line.get_color() == light.get_color() and line is not light
    ]
    (window,) = [int(n) for text in figure.texts for n in re.findall(r"median of (\d+)", text.get_text())]
    half = window // 2
    medians = np.asarray(strong.get_ydata(), dtype=float)
    for i in (half, 100, 400, ITERATIONS - 1 - half):
        assert medians[i] == pytest.approx(100 * np.median(values[i - half : i + half + 1]))


@pytest.mark.parametrize(("fraction", "scale"), [(0.05, "log"), (0.2, "linear")])
def test_the_axis_is_logarithmic_when_runs_differ_by_more_than_ten(fraction: float, scale: str) -> None:
    figure = figures.fraction_per_iteration(
        [history("none", "none", np.ones(50)), history("wgt", "wgt", np.full(50, fraction))]
    )
    assert figure.axes[0].get_yscale() == scale
    assert_readable(figure)


def test_labels_say_what_was_sent_overall(four: list[RunHistory]) -> None:
    figure = figures.fraction_per_iteration([four[0], history("wgt", "wgt", [0.02, 0.06] * 10)])
    assert by_text(figure, "wgt").get_text() == "wgt\n4% overall"
    assert heading(figure).get_text() == "wgt sends 4% of the gradient's elements"


@pytest.mark.parametrize("count", [2, 12, 30])
def test_labels_of_a_crowd_can_be_read(count: int) -> None:
    figure = figures.fraction_per_iteration(crowd(count))
    assert_readable(figure)
    assert len(notes(figure)) == count + 1
    frame = figure.axes[0].get_window_extent()
    assert min(box(note).y0 for note in notes(figure)) >= frame.y0 - 1
    assert max(box(note).y1 for note in notes(figure)) <= frame.y1 + 1


@pytest.mark.parametrize(
    "values",
    [[0.0] * 40, [0.5], [math.nan, 0.01, 0.02], [0.01, 0.02, math.nan], [0.02, 0.01, 0.0]],
    ids=["nothing sent", "one step", "begins with nan", "ends with nan", "ends with nothing"],
)
def test_unusual_histories_are_drawn(values: list[float]) -> None:
    figure = figures.fraction_per_iteration([history("wgt", "wgt", values)])
    assert_readable(figure)
    assert any(
        np.array_equal(line.get_ydata(), 100 * np.array(values), equal_nan=True) for line in lines(figure)
    )


def test_a_figure_of_nothing_is_an_error(four: list[RunHistory]) -> None:
    bare = RunHistory("id", "bare", "wgt", None, {}, {}, {})
    with pytest.raises(ValueError, match="comm/fraction"):
        figures.fraction_per_iteration([bare])
    with pytest.raises(ValueError, match="total/wire_gb"):
        figures.value_against_mb([bare])


# Accuracy


def test_points_are_the_runs_totals(four: list[RunHistory]) -> None:
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


def test_the_title_compares_the_smallest_run_with_the_baseline(four: list[RunHistory]) -> None:
    title = heading(figures.value_against_mb(four)).get_text()
    assert title == "bgt tau=0.01 sends 241 times less than the baseline: 96.3% accuracy against 97.1%"
    alone = heading(figures.value_against_mb(four[1:])).get_text()
    assert alone == "bgt tau=0.01 sends least, 0.9 MB, and reaches 96.3%"


def test_accuracy_labels_of_a_sweep_can_be_read(four: list[RunHistory]) -> None:
    sweep = [
        history(f"wgt tau={tau:g}", "wgt", [0.1], accuracy=accuracy, wire_gb=wire, paper_gb=wire * 0.8)
        for tau, accuracy, wire in [
            (2e-3, 0.9679, 0.0072), (3e-3, 0.9678, 0.0071), (4e-3, 0.9668, 0.0070), (5e-3, 0.967, 0.0068),
        ]
    ]  # fmt: skip
    figure = figures.value_against_mb([*four, *sweep])
    assert_readable(figure)
    level = figure.axes[0].transData.transform((1, 97.12))[1]
    assert not [note.get_text() for note in notes(figure) if box(note).y0 < level < box(note).y1]


def test_a_long_name_is_shortened_and_fits() -> None:
    long = history("x" * 100 + " tau=0.125", "wgt", np.full(20, 0.1))
    for draw in (figures.fraction_per_iteration, figures.value_against_mb):
        figure = draw([history("none", "none", np.ones(20), wire_gb=1), long])
        assert_readable(figure)
        assert any("tau=0.125" in note.get_text() for note in notes(figure))


# The style


def test_every_rule_looks_different() -> None:
    looks = [*palette.RULES.values(), palette.UNKNOWN_RULE]
    assert len({look.color for look in looks}) == len(looks)
    assert len({look.marker for look in list(palette.RULES.values())[1:]}) == len(palette.RULES) - 1
    assert palette.rule_style("new one") == palette.UNKNOWN_RULE


@given(
    st.lists(st.tuples(st.floats(-50, 150), st.floats(1, 8)), min_size=1, max_size=10),
)
def test_spread_intervals_keep_their_order_and_do_not_overlap(wanted: list[tuple[float, float]]) -> None:
    sizes = [size for _, size in wanted]
    centers = labelling.spread([center for center, _ in wanted], sizes, 0, 100)
    order = sorted(range(len(wanted)), key=lambda i: centers[i])
    for a, b in itertools.pairwise(order):
        assert centers[b] - centers[a] >= (sizes[a] + sizes[b]) / 2 - 1e-6
        assert wanted[a][0] <= wanted[b][0]
    assert centers[order[0]] - sizes[order[0]] / 2 >= -1e-6
    assert centers[order[-1]] + sizes[order[-1]] / 2 <= 100 + 1e-6


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.001, "0.001"), (0.0300, "0.03"), (1, "1"), (10, "10"), (97.25, "97.2"), (1000, "1,000"), (0, "0")],
)
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert style.decimal(value) == text


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (3, 8), (1, 40), (0.01, 1000), (1e-6, 1e6)])
def test_a_logarithmic_axis_has_enough_ticks_within_its_limits(low: float, high: float) -> None:
    _, axes = style.new_figure("title", "", "x", "y")
    style.log_axis(axes.yaxis, low, high, "%")
    ticks = axes.get_yticks()
    assert 2 <= len(ticks) <= 13
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


# Reading runs back


def test_a_run_is_read_back_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    metric = mlflow.entities.Metric
    monkeypatch.chdir(tmp_path)
    client = mlflow.tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
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
    client.log_batch(
        run, metrics=[metric("train/loss", math.inf, 1, 0), metric("train/loss", math.nan, 2, 1)]
    )
    got = read_run(client, run, ["comm/fraction", "train/loss", "never/logged"])
    assert (got.run_id, got.name, got.rule, got.tau) == (run, "first", "wgt", 0.001)
    assert set(got.metrics) == {"comm/fraction", "train/loss"}
    steps, values = got.metrics["comm/fraction"]
    assert np.array_equal(steps, np.arange(count))
    assert np.array_equal(values, np.arange(count) / count)
    assert got.metrics["train/loss"][1][0] == math.inf
    assert math.isnan(got.metrics["train/loss"][1][1])
    assert got.finals["comm/fraction"] == (count - 1) / count
    assert not got.is_baseline
