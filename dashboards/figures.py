"""The papers' figures, drawn from tracked runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from taugrad.platform.tracking import names

from . import metric_labels, style, ticks
from .histories import MOST_POINTS, bucket_medians, thinned
from .labelling import LONGEST_NAME, Label, label_ends, label_points, shortened
from .palette import GREY, rule_style
from .runs import RunHistory

_LOG_RATIO = 10.0  # runs that differ by more than this need a logarithmic axis
_NOISY = 0.03  # typical distance from the running median, as a part of it, that makes a line hard to follow
_LONGEST_WINDOW = 101
_LONG_MEDIANS = 300  # points of the running median of a run with more iterations than can be seen
_MB_PER_GB = 1000.0
_FULL = 32.0  # bits of a parameter without compression
BITS_METRICS = (names.EPOCH_BITS_PER_PARAM, names.EPOCH_VALUE_BITS_PER_PARAM, names.EPOCH)
"""The metrics whose histories `bits_per_epoch` needs."""


def fraction_per_iteration(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """Fraction of the gradient that is sent, by iteration (Anoosheh's figures 4, 6 and 8).

    Runs without a history of `comm/fraction` are left out; a noisy run is drawn lightly, with its running
    median on top. Raises ValueError if no run has that history.
    """
    lines = [_Fractions.of(run) for run in runs if names.COMM_FRACTION in run.metrics]
    if not lines:
        raise ValueError(f"no run has a history of {names.COMM_FRACTION}")
    windows = sorted({line.window for line in lines if line.window})
    median = f"; strong: running median of {' or '.join(map(str, windows))} iterations" if windows else ""
    figure, axes = style.new_figure(
        _fraction_title(lines),
        "light: every iteration" + median if windows else "",
        "iteration",
        "elements sent by a worker, %",
        page,
    )
    style.iterations(axes, [line.steps for line in lines])
    _fraction_axis(axes, lines)
    labels = [line.draw(axes) for line in lines]
    if not any(line.run.is_baseline for line in lines):
        axes.axhline(100.0, color=GREY, linewidth=1.2, linestyle="--")
        labels.append(Label(axes.get_xlim()[1], 100.0, "no compression", GREY))
    label_ends(axes, labels)
    return figure


def value_against_mb(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """Final value of the metric over megabytes sent (Anoosheh's figures 3, 5 and 7).

    The metric is the one that most runs are judged by; runs without its final value or `total/wire_gb` are
    left out. Raises ValueError if no run has both.
    """
    metrics = metric_labels.common(run.metric for run in runs)
    judged = [run for run in runs if run.metric == metrics[0]]
    points = [point for run in judged if (point := _Point.of(run)) is not None]
    if not points:
        raise ValueError(f"no run has both a value of its metric and {names.TOTAL_WIRE_GB}")
    metric = metrics[0]
    figure, axes = style.new_figure(
        _title(points),
        "filled: bytes on the wire; hollow: bytes as the papers count them, value bits only",
        "MB sent by all workers over the run (logarithmic)",
        metric_labels.final_label(metric),
        page,
    )
    sent = [mb for point in points for mb in (point.wire_mb, point.paper_mb) if mb is not None]
    style.log_axis(axes.xaxis, min(sent) / 2, max(sent) * 2, " MB")
    values = [point.value for point in points]
    least = 0.5 if metric.unit == "%" else 0.005 * max(map(abs, values))
    room = max(least, 0.15 * (max(values) - min(values))) or 1.0
    axes.set_ylim(min(values) - room, max(values) + room)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}{metric_labels.tick(metric)}"))
    for point in points:
        point.draw(axes)
    label_points(
        axes, [point.label(LONGEST_NAME // 2 if page.is_narrow else LONGEST_NAME) for point in points]
    )
    return figure


def bits_per_epoch(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """Bits per parameter and epoch, before entropy coding and on the wire (Oland-Raj's figure 5).

    One panel for each compressed run with the histories of `BITS_METRICS`; raises ValueError without any.
    """
    drawn = [run for run in runs if not run.is_baseline and set(BITS_METRICS) <= set(run.metrics)]
    if not drawn:
        raise ValueError(f"no compressed run has a history of {names.EPOCH_BITS_PER_PARAM}")
    figure, panels = style.new_panels(
        "Bits per parameter, epoch by epoch",
        "thin: value bits before entropy coding, without positions; thick: on the wire, all included"
        "; dashed: 32 bits, no compression",
        "epoch",
        "bits per parameter and step (logarithmic)",
        [(run.name, rule_style(run.rule).color) for run in drawn],
        page,
    )
    values = [
        float(bits) for run in drawn for name in BITS_METRICS[:2] for bits in run.metrics[name][1] if bits > 0
    ]
    style.log_axis(panels[0].yaxis, min(values) / 1.8, _FULL * 1.6, "", most=5)
    last = max(float(run.metrics[names.EPOCH][1][-1]) for run in drawn)
    panels[0].set_xlim(0.7, max(last, 1) + 0.3)
    panels[0].xaxis.set_major_locator(ticks.linear(5, style.TICK_SIZE, whole=True))
    for axes, run in zip(panels, drawn, strict=True):
        color = rule_style(run.rule).color
        axes.axhline(_FULL, color="black", linewidth=1.0, linestyle="--", alpha=0.6)
        ends = []
        for name, width, word in ((BITS_METRICS[1], 0.9, "values"), (BITS_METRICS[0], 2.0, "wire")):
            points = _by_epoch(run, name)
            if points:
                xs, ys = [epoch for epoch, _ in points], [bits for _, bits in points]
                axes.plot(xs, ys, color=color, linewidth=width, marker="o", markersize=1.5 + width)
                mean = style.decimal(sum(ys) / len(ys), 2)
                middle = len(points) // 2
                ends.append(Label(xs[middle], ys[middle], f"{word}, mean {mean}", color))
        label_points(axes, ends, size=style.SMALL_SIZE)
    return figure


def png(figure: Figure) -> bytes:
    """A figure as PNG, 150 dots an inch, the same bytes for the same data."""
    with style.as_written():
        file = BytesIO()
        figure.savefig(
            file, dpi=style.DPI, format="png", metadata={"Software": None}, pil_kwargs={"compress_level": 3}
        )
        return file.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG."""
    path.write_bytes(png(figure))


@dataclass(frozen=True, eq=False)
class _Fractions:
    """A line of `fraction_per_iteration`, thinned to what can be seen."""

    run: RunHistory
    steps: NDArray[np.int64]
    percent: NDArray[np.float64]
    smooth_steps: NDArray[np.int64]
    smooth: NDArray[np.float64]
    """The running median; the same as `percent` for a line that is easy to follow."""
    window: int
    """Iterations in the median; 0 without one."""

    @classmethod
    def of(cls, run: RunHistory) -> "_Fractions":
        history = run.metrics[names.COMM_FRACTION]
        steps, fractions = thinned(history)
        percent = 100 * fractions
        count = len(history[1])
        if count > MOST_POINTS:
            smooth_steps, smooth = bucket_medians(history, _LONG_MEDIANS)
            return cls(run, steps, percent, smooth_steps, 100 * smooth, count // _LONG_MEDIANS)
        window = min(_LONGEST_WINDOW, count // 30) | 1
        if window >= 3:
            smooth = _running_median(percent, window)
            if np.nanmedian(np.abs(percent - smooth)) > _NOISY * np.nanmedian(smooth):
                return cls(run, steps, percent, steps, smooth, window)
        return cls(run, steps, percent, steps, percent, 0)

    @property
    def mean(self) -> float:
        """Percent sent over the whole run."""
        return 100 * self.run.finals.get(names.TOTAL_FRACTION, float(np.nanmean(self.percent)) / 100)

    def draw(self, axes: Axes) -> Label:
        color = rule_style(self.run.rule).color
        if self.window:
            axes.plot(self.steps, self.percent, color=color, linewidth=0.7, alpha=0.3)
        axes.plot(self.smooth_steps, self.smooth, color=color, linewidth=1.6)
        text = f"{shortened(self.run.name)}\n{style.decimal(self.mean, 2)}% overall"
        # A line that ends at nothing, or at NaN, is labelled at the axis' lower end.
        end = float(np.clip(np.nan_to_num(self.smooth[-1]), *axes.get_ylim()))
        return Label(float(self.steps[-1]), end, text, color)


@dataclass(frozen=True, eq=False)
class _Point:
    """A run in `value_against_mb`."""

    run: RunHistory
    value: float
    """In the metric's displayed unit."""
    wire_mb: float
    paper_mb: float | None

    @classmethod
    def of(cls, run: RunHistory) -> "_Point | None":
        value, wire = run.value, run.finals.get(names.TOTAL_WIRE_GB)
        if value is None or wire is None or not 0 < wire < math.inf:
            return None
        paper = run.finals.get(names.TOTAL_PAPER_GB, 0.0)
        # Nothing sent has no place on a logarithmic axis.
        return cls(run, value, _MB_PER_GB * wire, _MB_PER_GB * paper if paper > 0 else None)

    def draw(self, axes: Axes) -> None:
        color, marker = rule_style(self.run.rule)
        if self.run.is_baseline:
            axes.axhline(self.value, color=color, linewidth=1.0, linestyle="--", alpha=0.6, zorder=1)
        if self.paper_mb is not None:
            both = [self.paper_mb, self.wire_mb]
            axes.plot(both, [self.value] * 2, color=color, linewidth=0.9, alpha=0.6, zorder=2)
            axes.plot(
                [self.paper_mb], [self.value], marker=marker, color=color, markerfacecolor="white",
                markersize=7, linestyle="none", zorder=3,
            )  # fmt: skip
        axes.plot(
            [self.wire_mb],
            [self.value],
            marker=marker,
            color=color,
            markersize=7,
            linestyle="none",
            zorder=4,
        )

    def label(self, longest: int) -> Label:
        color = rule_style(self.run.rule).color
        text = f"{shortened(self.run.name, longest)}, {metric_labels.brief(self.run.metric, self.value)}"
        return Label(self.wire_mb, self.value, text, color)


def _fraction_axis(axes: Axes, lines: Sequence[_Fractions]) -> None:
    # The line at 100% is always there.
    typical = [100.0, *(middle for line in lines if (middle := float(np.nanmedian(line.smooth))) > 0)]
    highest = max([100.0, *(float(np.nanmax(line.percent)) for line in lines)])
    if max(typical) > _LOG_RATIO * min(typical):
        # One iteration that sent next to nothing must not stretch the axis.
        low = min(
            float(np.nanpercentile(line.percent[line.percent > 0], 1)) for line in lines if line.percent.any()
        )
        style.log_axis(axes.yaxis, low / 1.5, highest * 1.4, "%")
        return
    axes.set_ylim(0, highest * 1.05)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{style.decimal(value)}%"))


def _fraction_title(lines: Sequence[_Fractions]) -> str:
    compressed = sorted((line for line in lines if not line.run.is_baseline), key=lambda line: line.mean)
    if not compressed:
        return "Without compression every element is sent"
    if len(compressed) == 1:
        only = compressed[0]
        return f"{shortened(only.run.name)} sends {style.decimal(only.mean, 2)}% of the gradient's elements"
    low, high = (f"{style.decimal(line.mean, 2)}%" for line in (compressed[0], compressed[-1]))
    if low == high:
        return f"The compressed runs send {low} of the gradient's elements"
    return f"The compressed runs send {low} to {high} of the gradient's elements"


def _title(points: Sequence[_Point]) -> str:
    baseline = next((point for point in points if point.run.is_baseline), None)
    compressed = [point for point in points if not point.run.is_baseline]
    metric = points[0].run.metric
    if not compressed:
        return f"What {metric.label} costs without compression"
    least = min(compressed, key=lambda point: point.wire_mb)
    name = shortened(least.run.name)
    if baseline is None:
        reached = metric_labels.brief(metric, least.value)
        return f"{name} sends least, {style.decimal(least.wire_mb)} MB, and reaches {reached}"
    ratio = style.decimal(baseline.wire_mb / least.wire_mb, 3)
    least_value, baseline_value = (metric_labels.brief(metric, point.value) for point in (least, baseline))
    reached = f"{least_value} {metric.label} against {baseline_value}"
    return f"{name} sends {ratio} times less than the baseline: {reached}"


def _running_median(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The median of `window` values (odd) around each; the ends are mirrored."""
    padded = np.pad(values, window // 2, mode="reflect")
    medians: NDArray[np.float64] = np.median(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1)
    return medians


def _by_epoch(run: RunHistory, metric: str) -> list[tuple[float, float]]:
    """A metric's positive values, each with the epoch at whose end it was logged."""
    epoch_steps, epochs = run.metrics[names.EPOCH]
    at = dict(zip(epoch_steps.tolist(), epochs.tolist(), strict=True))
    steps, values = run.metrics[metric]
    pairs = zip(steps.tolist(), values.tolist(), strict=True)
    return [(at[step], value) for step, value in pairs if step in at and value > 0]
