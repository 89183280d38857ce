"""Draws who sends what to whom in each synchronization mode, as SVG.

python docs/figures/patterns.py            # writes docs/images/sync-*.svg
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "images"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#8C6100")
"""Of workers 0 to 3, and of the part of the gradient that each owns; Okabe and Ito's, the last one darker."""
INK, GREY, PALE = "#222222", "#6B6B6B", "#EDEDED"
WORKERS = 4
PANEL, TOP, RADIUS, NODE = 230, 40, 72, 19  # pixels
CAPTION = 46
_GAP = 5  # between an arrow and a node
_SIDE = 4  # two arrows of opposite direction lie this far from the line between their nodes

Point = tuple[float, float]


def place(worker: int) -> Point:
    """The centre of a worker in its panel: on a circle, worker 0 at the top, clockwise."""
    angle = 2 * math.pi * worker / WORKERS - math.pi / 2
    return PANEL / 2 + RADIUS * math.cos(angle), TOP + RADIUS + NODE + RADIUS * math.sin(angle)


def text(x: float, y: float, words: str, *, color: str = INK, size: int = 13, weight: str = "normal") -> str:
    """Words around a point on their baseline."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="{size}" font-weight="{weight}" '
        f'fill="{color}">{words}</text>'
    )


def line(start: Point, end: Point, color: str, *, width: float = 1.8) -> str:
    """An arrow between two points."""
    return (
        f'<path d="M{start[0]:.1f},{start[1]:.1f} L{end[0]:.1f},{end[1]:.1f}" stroke="{color}" '
        f'stroke-width="{width}" fill="none" marker-end="url(#arrow-{color[1:]})"/>'
    )


def arrow(sender: int, receiver: int, color: str) -> str:
    """An arrow between two workers, a little to the right of the way."""
    (x0, y0), (x1, y1) = place(sender), place(receiver)
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    away, reach = NODE + _GAP, NODE + _GAP + 3
    shift = (-uy * _SIDE, ux * _SIDE)
    start = (x0 + ux * away + shift[0], y0 + uy * away + shift[1])
    end = (x1 - ux * reach + shift[0], y1 - uy * reach + shift[1])
    return line(start, end, color)


def node(worker: int, *, filled: bool) -> str:
    """A worker; filled with its colour where it owns a part of the gradient."""
    x, y = place(worker)
    fill, color = (COLORS[worker], "#FFFFFF") if filled else (PALE, INK)
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{NODE}" fill="{fill}" stroke="{COLORS[worker]}"/>'
    return circle + text(x, y + 5, str(worker), color=color, size=15, weight="bold")


def panel(title: str, caption: Sequence[str], arrows: Iterable[str], owners: Sequence[int] = ()) -> list[str]:
    """Workers around a circle, and what goes between them in one round."""
    below = TOP + 2 * (RADIUS + NODE) + 22
    parts = [text(PANEL / 2, 22, title, weight="bold"), *arrows]
    parts += [node(worker, filled=worker in owners) for worker in range(WORKERS)]
    return parts + [text(PANEL / 2, below + 17 * i, words, color=GREY) for i, words in enumerate(caption)]


def document(width: float, height: float, body: Iterable[str]) -> str:
    """A whole SVG with a white ground."""
    markers = "".join(
        f'<marker id="arrow-{color[1:]}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5.5" '
        f'markerHeight="5.5" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
        for color in (*COLORS, GREY)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="Helvetica, Arial, sans-serif">\n'
        f"<defs>{markers}</defs>\n"
        f'<rect width="100%" height="100%" fill="#FFFFFF"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def rounds(*panels: Sequence[str]) -> str:
    """Panels beside each other, in the order of time."""
    height = TOP + 2 * (RADIUS + NODE) + CAPTION
    body = [f'<g transform="translate({PANEL * i},0)">{"".join(parts)}</g>' for i, parts in enumerate(panels)]
    return document(PANEL * len(panels), height, body)


def others(worker: int) -> list[int]:
    """All workers but one."""
    return [each for each in range(WORKERS) if each != worker]


def allgather() -> str:
    """Every message to everybody."""
    every = [arrow(sender, to, COLORS[sender]) for sender in range(WORKERS) for to in others(sender)]
    return rounds(panel("one round", ("each worker's message", "to all others"), every))


def ring() -> str:
    """Chunks of the gradient go round twice; an arrow has the colour of its chunk."""
    out = [arrow(worker, (worker + 1) % WORKERS, COLORS[worker]) for worker in range(WORKERS)]
    home = [
        arrow(worker, (worker + 1) % WORKERS, COLORS[(worker + 1) % WORKERS]) for worker in range(WORKERS)
    ]
    return rounds(
        panel("rounds 1 to N - 1", ("partial sums of a chunk: add", "your own, compress, pass on"), out),
        panel("rounds N to 2 (N - 1)", ("each chunk's sum goes round", "as it is"), home),
    )


def parameter_server() -> str:
    """All to worker 0 and back."""
    out = [arrow(worker, 0, COLORS[worker]) for worker in others(0)]
    home = [arrow(0, worker, COLORS[0]) for worker in others(0)]
    return rounds(
        panel("round 1", ("each worker's message", "to worker 0, which sums up"), out, (0,)),
        panel("round 2", ("the sum, compressed anew,", "to all"), home, (0,)),
    )


def sharded() -> str:
    """A part to its owner, whose colour it has, and the part's sum to all."""
    owners = range(WORKERS)
    out = [arrow(worker, owner, COLORS[owner]) for worker in owners for owner in others(worker)]
    home = [arrow(owner, worker, COLORS[owner]) for owner in owners for worker in others(owner)]
    return rounds(
        panel("round 1", ("1/N of each worker's message", "to the owner of that part"), out, owners),
        panel("round 2", ("each part's sum, compressed", "anew, to all"), home, owners),
    )


def weights() -> str:
    """Workers train alone between two exchanges."""
    left, lane, alone, gap = 88, 36, 176, 62
    height = 40 + lane * WORKERS + 50
    top, bottom = 34, 34 + lane * WORKERS - 8
    body = []
    for worker in range(WORKERS):
        y = 34 + lane * worker
        body.append(text(40, y + 18, f"worker {worker}", color=COLORS[worker], weight="bold"))
        for turn in range(2):
            x = left + turn * (alone + gap)
            body.append(
                f'<rect x="{x}" y="{y}" width="{alone}" height="28" rx="4" fill="{COLORS[worker]}" '
                f'fill-opacity="0.16" stroke="{COLORS[worker]}"/>'
            )
            body.append(text(x + alone / 2, y + 18, "H steps with its own optimizer", size=11))
    for turn in range(2):
        x = left + alone + 10 + turn * (alone + gap)
        body.append(
            f'<rect x="{x}" y="{top}" width="{gap - 20}" height="{bottom - top}" rx="4" fill="{PALE}" '
            f'stroke="{GREY}"/>'
        )
        middle = (top + bottom) / 2
        body.append(text(x + (gap - 20) / 2, middle - 4, "ex-", size=11))
        body.append(text(x + (gap - 20) / 2, middle + 10, "change", size=11))
        body.append(text(x + (gap - 20) / 2, top - 8, "all alike", size=11, color=GREY))
    width = left + 2 * (alone + gap) + 12
    body.append(text(width / 2, bottom + 26, "exchange: weights, or pseudo-gradients,", color=GREY))
    body.append(text(width / 2, bottom + 43, "by any of the patterns above", color=GREY))
    return document(width, height, body)


def _stripes(x: float, y: float, width: float, height: float, owners: Sequence[int]) -> str:
    """A block of examples, a stripe for each worker that they are of."""
    part = height / len(owners)
    stripes = "".join(
        f'<rect x="{x:.1f}" y="{y + part * i:.1f}" width="{width:.1f}" height="{part:.1f}" '
        f'fill="{COLORS[owner]}" fill-opacity="0.75"/>'
        for i, owner in enumerate(owners)
    )
    frame = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="none" stroke="{INK}"/>'
    )
    return stripes + frame


def _turns(
    y: float, name: str, turns: Sequence[Sequence[int]], sending: float, computing: float
) -> list[str]:
    """A scheme's turns: features on their way, examples that are computed, gradients on their way back.

    Args:
        y: of its top, pixels.
        name: of the scheme.
        turns: the workers whose examples each one has.
        sending: pixels that a turn's features take.
        computing: pixels that the turn itself takes.
    """
    left, height, gap = 190, 26, 6
    parts = [text(20, y + 1.5 * height + gap, name, size=15, weight="bold")]
    lanes = (
        ("features", sending, [max(0.0, sending + computing * (turn - 1)) for turn in range(len(turns))]),
        ("computed", computing, [sending + computing * turn for turn in range(len(turns))]),
        ("gradients", sending, [sending + computing * (turn + 1) for turn in range(len(turns))]),
    )
    for lane, (words, width, starts) in enumerate(lanes):
        below = y + lane * (height + gap)
        parts.append(text(112, below + 17, words, color=GREY))
        parts += [
            _stripes(left + start, below, width - 2, height, owners)
            for start, owners in zip(starts, turns, strict=True)
        ]
    return parts


def hybrid() -> str:
    """The schemes' turns in time; colours are of the workers whose examples they are."""
    everybody, unit = range(WORKERS), 92.0
    body: list[str] = []
    schemes = (
        ("a", [list(everybody)], unit, WORKERS * unit),
        ("b", [[worker] for worker in everybody], unit, unit),
        ("c", [list(everybody)] * WORKERS, unit / WORKERS, unit),
    )
    for number, (name, turns, sending, computing) in enumerate(schemes):
        body += _turns(20 + 120 * number, name, turns, sending, computing)
    width = 190 + unit * (WORKERS + 2) + 20
    caption = (
        "time goes to the right; colours: whose examples; all workers compute each turn, with their neurons;",
        "as if to send B examples' features to all took a worker as long as they take to compute",
    )
    body += [text(width / 2, 390 + 17 * i, words, color=GREY) for i, words in enumerate(caption)]
    return document(width, 420, body)


def asynchronous() -> str:
    """Steps of workers that do not wait, in time, and the messages of two of them on their way."""
    step_times, shown, delay = (1.0, 1.2, 0.9, 3.1), (0, 3), 0.7
    left, unit, height, gap, end = 110, 84.0, 26, 34, 6.6
    body: list[str] = []
    arrows: list[str] = []
    for worker, step_time in enumerate(step_times):
        y = 24 + worker * (height + gap)
        body.append(text(54, y + 17, f"worker {worker}", color=COLORS[worker], weight="bold"))
        for step in range(int(end / step_time)):
            x = left + unit * step * step_time
            body.append(
                f'<rect x="{x:.1f}" y="{y}" width="{unit * step_time - 3:.1f}" height="{height}" '
                f'fill="{COLORS[worker]}"/>'
            )
            leaving = (step + 1) * step_time
            if worker in shown and leaving + delay < end:
                arrows += [
                    _message(
                        left + unit * leaving, left + unit * (leaving + delay), worker, other, height, gap
                    )
                    for other in others(worker)
                ]
    caption = (
        "time goes to the right; a box is a step, an arrow a message (those of workers 0 and 3),",
        "applied before its receiver's next step; worker 3 is slow, and stops nobody below most_behind steps",
    )
    bottom = 24 + len(step_times) * (height + gap)
    width = left + unit * end + 20
    body += arrows + [text(width / 2, bottom + 17 * i, words, color=GREY) for i, words in enumerate(caption)]
    return document(width, bottom + 30, body)


def _message(leaves: float, arrives: float, sender: int, receiver: int, height: int, gap: int) -> str:
    """An arrow from a sender's lane to a receiver's, in the gaps between lanes."""
    down = receiver > sender
    y0 = 24 + sender * (height + gap) + (height if down else 0)
    y1 = 24 + receiver * (height + gap) + (-3 if down else height + 3)
    return line((leaves - 2, y0), (arrives, y1), COLORS[sender], width=1.3)


FIGURES = {
    "allgather": allgather,
    "ring": ring,
    "parameter-server": parameter_server,
    "sharded": sharded,
    "weights": weights,
    "hybrid": hybrid,
    "async": asynchronous,
}


def main() -> None:
    """Writes all figures."""
    for name, draw in FIGURES.items():
        path = IMAGES / f"sync-{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
