"""The figure of network/network_target.py: minutes to the target, by link, of each kind of exchange."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean

from taugrad.dashboards.figures import save
from taugrad.dashboards.style import WIDE, log_axis, new_panels
from taugrad.platform.tasks.claims import interval
from taugrad.platform.tasks.metric import LOSS

from ..harness.pages import tables
from ..harness.report import markdown, number
from .target_settings import CODED, CONTENDERS
from .target_times import Row


@dataclass(frozen=True)
class Time:
    """Minutes to the target."""

    mean: float
    low: float
    """The 95% interval over seeds; the mean without one."""
    high: float


Minutes = Mapping[str, Mapping[str, Time]]
"""By link and kind of exchange."""


_LEAST_MINUTES = 20
"""If every time is shorter, the axis has seconds."""


def best_of_kinds(rows: Iterable[Row], kinds: Mapping[str, str]) -> dict[str, Time]:
    """The least minutes of each contender's settings; who did not come to the target is left out."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.seconds):
        if isfinite(row.seconds):
            best.setdefault(kinds[row.setting.name], row)
    return {kind: _by_seeds(row.seconds / 60, row.steps) for kind, row in best.items()}


def recorded(page: Path) -> dict[str, dict[str, Time]]:
    """Each contender's best time over each link, with its interval, read from a page of results.

    Raises:
        ValueError: a setting is not one of a contender that is known.
    """
    minutes: dict[str, dict[str, Time]] = {}
    steps: dict[str, list[float]] = {}
    for heading, columns, rows in tables(page.read_text(encoding="utf-8")):
        if ": steps to " in heading:
            seeds = [at for at, title in enumerate(columns) if title.startswith("seed ")]
            steps = {row[0]: [_number(row[at]) for at in seeds if row[at][:1].isdigit()] for row in rows}
        elif columns[0] == "setting" and (over := re.search(r" over (\w+,\w+) \(", heading)):
            known = minutes.setdefault(over[1], {})
            for setting, mean, within, *_ in rows:
                kind, (low, _, high) = _kind(setting), within.partition(" to ")
                if mean != "not reached" and (kind not in known or _number(mean) < known[kind].mean):
                    if high:
                        known[kind] = Time(_number(mean), _number(low), _number(high))
                    else:
                        known[kind] = _by_seeds(_number(mean), steps[setting])
    return minutes


def _kind(setting: str) -> str:
    if setting.endswith(", coded"):
        return CODED
    for contender in CONTENDERS.values():
        if contender.has(setting):
            return contender.name
    raise ValueError(f"{setting} belongs to no contender")


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _by_seeds(mean: float, steps: Sequence[float]) -> Time:
    low, high = interval(steps, None, LOSS) or (mean, mean)
    return Time(mean, mean * low / fmean(steps), mean * high / fmean(steps))


def draw(path: Path, minutes: Minutes, note: str = "") -> None:
    """Draws a panel for each link, a row for each contender, into a .png or .svg; `note` says where from."""
    times = [time for by_kind in minutes.values() for time in by_kind.values()]
    unit, factor = ("minutes", 1) if max(time.mean for time in times) >= _LEAST_MINUTES else ("seconds", 60)
    first = next(iter(minutes.values()))
    others = dict.fromkeys(kind for by_kind in minutes.values() for kind in by_kind if kind not in first)
    kinds = [*sorted(first, key=lambda kind: first[kind].mean), *others]
    figure, panels = new_panels(
        f"{unit.capitalize()} to the same loss, four hosts",
        "each contender at its best on each link: steps x measured seconds of a step; bars: 95% interval of "
        f"the steps over seeds; a panel's heading: the link's rate and its delay one way; no mark: not "
        f"measured there{note}",
        f"{unit} (logarithmic)",
        "",
        [(_label(link), "black") for link in minutes],
        replace(WIDE, left=2.15, panel_height=0.6 + 0.21 * len(kinds)),
    )
    ends = [factor * end for time in times for end in (time.low, time.high)]
    log_axis(panels[0].xaxis, min(ends) / 1.5, max(ends) * 1.5, "", most=4)
    for axes, by_kind in zip(panels, minutes.values(), strict=True):
        for row, kind in enumerate(kinds):
            if kind in by_kind:
                time = by_kind[kind]
                color, marker = CONTENDERS[kind.removesuffix(", coded")].look
                axes.plot([factor * time.low, factor * time.high], [row, row], color=color, linewidth=1.5)
                axes.plot([factor * time.mean], [row], marker, color=color, markersize=4.5)
    panels[0].set_yticks(range(len(kinds)), kinds)
    panels[0].set_ylim(len(kinds) - 0.4, -0.6)
    save(figure, path)


def _label(link: str) -> str:
    rate, _, delay = link.partition(",")
    return f"{rate.replace('mbit', ' Mbit/s').replace('gbit', ' Gbit/s')}, {delay.replace('ms', ' ms')}"


def times_table(title: str, minutes: Minutes) -> str:
    """Seconds to the target over each link, the fastest over the first one first."""
    first, rows = next(iter(minutes.values())), []
    for kind in sorted(first, key=lambda kind: first[kind].mean):
        times = [by_kind.get(kind) for by_kind in minutes.values()]
        rows.append([kind, *("" if time is None else f"{number(60 * time.mean)} s" for time in times)])
    return "\n".join(markdown([title, *map(_label, minutes)], rows))
