"""Theoretical times to send a gradient over links of different rates (Rae's figure 1b)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from taugrad.platform.tracking import names

from . import style, ticks
from .groups import Group
from .labelling import Label, label_ends
from .palette import rule_style

BANDWIDTHS = (10e6, 100e9)
"""Bits a second: from a home's uplink to a data centre's network."""

_RATES = {"Gbit/s": 1e9, "Mbit/s": 1e6, "bit/s": 1.0}
_TICKS = (*(float(f"1e{e}") for e in range(-9, 2)), 60.0, 600.0, 3600.0, 36000.0)


def send_time_by_method(groups: Sequence[Group], page: style.Page = style.WIDE) -> Figure:
    """Theoretical time to send a worker's messages of a mean step, by method and bandwidth.

    Raises ValueError if no group has a compression ratio, or the model's size is not known.
    """
    lines = []
    for group in groups:
        bits = step_bits(group)
        if bits is not None:
            label = group.name if group.is_baseline else f"{group.rule} {group.setting}".strip()
            lines.append((label, bits, rule_style(group.rule).color))
    if not lines:
        raise ValueError("no run says how many bytes a worker sends in a step")
    return _times("How long a worker's message of one step takes on the wire", lines, page)


def step_bits(group: Group) -> float | None:
    """Wire bits that a worker sends in a step, mean of the run; None if the run does not log it."""
    workers = group.param("workers.count")
    last = group.runs[0].final(names.COMM_WIRE_BYTES)
    last_ratio = group.runs[0].final(names.COMM_COMPRESSION_RATIO)
    compression = group.compression
    if not workers or not last or last_ratio is None or compression is None:
        return None  # if the last step sent nothing, the model's size is not known
    uncompressed = 8 * last * last_ratio / workers  # the same in every step
    return uncompressed / compression.mean


def _times(title: str, lines: Sequence[tuple[str, float, str]], page: style.Page) -> Figure:
    figure, axes = style.new_figure(
        title,
        "bits over bandwidth; latency, and what else is on the link, come on top",
        "bandwidth (logarithmic)",
        "time to send (logarithmic)",
        replace(page, left=max(page.left, 0.95)),
    )
    bandwidths = np.geomspace(*BANDWIDTHS, 60)
    style.log_axis(axes.xaxis, *BANDWIDTHS, "")
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: _in_units(value, _RATES).replace(" ", "\n"))
    )
    times = [bits / bandwidth for _, bits, _ in lines for bandwidth in BANDWIDTHS]
    style.log_axis(axes.yaxis, min(times) / 1.5, max(times) * 1.5, "")
    shown = [tick for tick in _TICKS if min(times) / 1.5 <= tick <= max(times) * 1.5]
    axes.yaxis.set_major_locator(ticks.fixed(shown, style.TICK_SIZE))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    for _, bits, color in lines:
        axes.plot(bandwidths, bits / bandwidths, color=color, linewidth=1.6)
    axes.xaxis.set_major_locator(ticks.fixed([10e6, 100e6, 1e9, 10e9, 100e9], style.TICK_SIZE))
    ends = [Label(BANDWIDTHS[1], bits / BANDWIDTHS[1], f"{name}\n{size(bits / 8)}", color)
            for name, bits, color in lines]  # fmt: skip
    label_ends(axes, ends)
    return figure


def seconds(value: float) -> str:
    """A time as text: `3 ms`, `2 min`."""
    return _in_units(value, {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9})


def size(count: float) -> str:
    """Bytes as text, in powers of 1000: `1.7 MB`."""
    return _in_units(math.ceil(count), {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1})


def _in_units(value: float, units: Mapping[str, float]) -> str:
    """A number in the largest unit of which it has one, or in the last."""
    name, unit = next((pair for pair in units.items() if value >= pair[1] * 0.9999), [*units.items()][-1])
    return f"{style.decimal(value / unit)} {name}"
