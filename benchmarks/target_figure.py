"""The figure of benchmarks/network_target.py: minutes to the target, by link, of each kind of exchange."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from target_times import Measured

from taugrad.dashboards.figures import save
from taugrad.dashboards.style import WIDE, Key, log_axis, new_panels

COLORS = {
    "DDP, float32": "#BBBBBB",
    "DDP, 16 bits": "#777777",
    "PowerSGD": "#E69F00",
    "DiLoCo": "#0072B2",
    "SparseLoCo": "#56B4E9",
    "taugrad": "#D55E00",
    "taugrad auto --link": "#000000",
}
"""By kind, Okabe and Ito's."""
_LEAST_MINUTES = 20
"""If every time is shorter, the axis has seconds."""
_MARKERS = dict(zip(COLORS, ("o", "s", "^", "D", "v", "o", "x"), strict=True))


def kind_of(name: str, *, ours: bool) -> str:
    """Which of the kinds a setting is of."""
    if ours:
        return "taugrad"
    if name.endswith("hook"):
        return "DDP, 16 bits"
    return name.partition(",")[0] if not name.startswith("DDP") else name


def best_of_kinds(minutes: Mapping[str, float], ours: Sequence[str], auto: str = "") -> dict[str, float]:
    """The least of each kind's settings; kinds that did not come to the target are left out.

    Args:
        minutes: by setting.
        ours: of these, those that others do not have.
        auto: of these, what `taugrad auto --link` chose.
    """
    found: dict[str, float] = {}
    for name, value in minutes.items():
        kind = "taugrad auto --link" if name == auto else kind_of(name, ours=name in ours)
        if isfinite(value):
            found[kind] = min(value, found.get(kind, value))
    return found


def draw(path: Path, minutes: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Draws a panel for each workload.

    Args:
        path: the file, .png or .svg.
        minutes: by workload, link and kind.
    """
    everything = [found for by_link in minutes.values() for found in by_link.values()]
    kinds = {kind for found in everything for kind in found}
    longest = max(value for found in everything for value in found.values())
    unit, factor = ("minutes", 1) if longest >= _LEAST_MINUTES else ("seconds", 60)
    figure, panels = new_panels(
        f"{unit.capitalize()} to the same loss or accuracy, four hosts",
        "each line: the best setting of its kind on each link, steps x measured seconds per step; "
        "below: the link's rate per second and its delay one way",
        "",
        f"{unit} (logarithmic)",
        [(workload, "black") for workload in minutes],
        WIDE,
        sharey=False,
        key=[Key(kind, color) for kind, color in COLORS.items() if kind in kinds],
    )
    for axes, by_link in zip(panels, minutes.values(), strict=True):
        links = list(by_link)
        drawn = [factor * value for found in by_link.values() for value in found.values()]
        for kind, color in COLORS.items():
            places = [place for place, link in enumerate(links) if kind in by_link[link]]
            values = [factor * by_link[links[place]][kind] for place in places]
            axes.plot(
                *(places, values, f"{_MARKERS[kind]}-"),
                color=color,
                markersize=5,
                linewidth=2 if kind == "taugrad" else 1,
                zorder=4 if kind == "taugrad" else 3,
            )
        log_axis(axes.yaxis, min(drawn) / 1.5, max(drawn) * 1.5, "", most=4)
        short = [_label(link).replace("/s", "") for link in links]
        axes.set_xticks(range(len(links)), short, fontsize=7)
        axes.set_xlim(-0.4, len(links) - 0.6)
    save(figure, path)


def _label(link: str) -> str:
    rate, _, delay = link.partition(",")
    return f"{rate.replace('mbit', ' Mbit/s').replace('gbit', ' Gbit/s')}\n{delay.replace('ms', ' ms')}"


def caption(measured: Mapping[str, Measured]) -> str:
    """What each panel's first and last links say, in words."""
    said = ["Four hosts; times of `taugrad auto --link` are without its probe of about two minutes."]
    for workload, found in measured.items():
        first, last = next(iter(found.minutes)), next(reversed(found.minutes))
        told = f"{workload}, to {found.target}: {_said(first, found.minutes[first])}"
        said.append(told + ("." if first == last else f"; {_said(last, found.minutes[last])}."))
    return " ".join(said)


def _said(link: str, minutes: Mapping[str, float]) -> str:
    """The times over a link, of ours and of the best of others."""
    seconds = {kind: f"{60 * value:.3g} s" for kind, value in minutes.items()}
    peers = [kind for kind in seconds if not kind.startswith(("taugrad", "DDP"))]
    peer = min(peers, key=minutes.__getitem__)
    return (
        f"at {_label(link).replace(chr(10), ' and ')}, `taugrad auto --link` takes "
        f"{seconds['taugrad auto --link']}, the best setting of ours by hand {seconds['taugrad']}, "
        f"{peer} {seconds[peer]}, DDP with 16 bits {seconds['DDP, 16 bits']}"
    )
