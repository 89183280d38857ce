"""The figure of bits per parameter in each epoch, before and after entropy coding."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from taugrad.platform.tracking import names

from . import style, ticks
from .labelling import Label, label_points
from .palette import rule_style
from .runs import RunHistory

_FULL = 32.0  # bits of a parameter without compression

METRICS = (names.EPOCH_BITS_PER_PARAM, names.EPOCH_VALUE_BITS_PER_PARAM, names.EPOCH)
"""The metrics whose histories this figure needs."""


def bits_per_epoch(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """Bit rate per epoch, raw and as sent (Oland-Raj's figure 5).

    Args:
        runs: With the histories of `METRICS`; the others and the baseline are left out.
        page: What it is drawn for.

    Returns:
        One panel a run: value bits before entropy coding, and bits on the wire.

    Raises:
        ValueError: No compressed run has these histories.
    """
    drawn = [run for run in runs if not run.is_baseline and set(METRICS) <= set(run.metrics)]
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
        float(bits) for run in drawn for name in METRICS[:2] for bits in run.metrics[name][1] if bits > 0
    ]
    style.log_axis(panels[0].yaxis, min(values) / 1.8, _FULL * 1.6, "", most=5)
    last = max(float(run.metrics[names.EPOCH][1][-1]) for run in drawn)
    panels[0].set_xlim(0.7, max(last, 1) + 0.3)
    panels[0].xaxis.set_major_locator(ticks.linear(5, style.TICK_SIZE, whole=True))
    for axes, run in zip(panels, drawn, strict=True):
        color = rule_style(run.rule).color
        axes.axhline(_FULL, color="black", linewidth=1.0, linestyle="--", alpha=0.6)
        ends = []
        for name, width, word in ((METRICS[1], 0.9, "values"), (METRICS[0], 2.0, "wire")):
            points = _by_epoch(run, name)
            if points:
                xs, ys = [epoch for epoch, _ in points], [bits for _, bits in points]
                axes.plot(xs, ys, color=color, linewidth=width, marker="o", markersize=1.5 + width)
                mean = style.decimal(float(f"{sum(ys) / len(ys):.2g}"))
                middle = len(points) // 2
                ends.append(Label(xs[middle], ys[middle], f"{word}, mean {mean}", color))
        label_points(axes, ends, size=style.SMALL_SIZE)
    return figure


def _by_epoch(run: RunHistory, metric: str) -> list[tuple[float, float]]:
    """A metric's positive values, each with the epoch at whose end it was logged."""
    epoch_steps, epochs = run.metrics[names.EPOCH]
    at = dict(zip(epoch_steps.tolist(), epochs.tolist(), strict=True))
    steps, values = run.metrics[metric]
    pairs = zip(steps.tolist(), values.tolist(), strict=True)
    return [(at[step], value) for step, value in pairs if step in at and value > 0]
