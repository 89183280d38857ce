"""What every rule and codec costs, next to the floor and to its peers.

    python benchmarks/compressors.py [--quick] [--write]

The floor is torch's `residual += gradient`, timed anew right before each contender, so that both see the
same machine. Peers do the same work with NumPy, torch, zstd or constriction; that it is the same is
checked before it is timed.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from arena import Arena, Rounds, Work
from case import Case, Peer, Quantity
from codec_cases import position_cases, symbol_cases
from report import Options, Spread, Table, load, number, publish, read_options
from rule_cases import rule_cases
from step_cases import step_cases

GROUPS: tuple[tuple[str, Callable[[Arena], Iterator[Case]]], ...] = (
    ("RULES", rule_cases),
    ("POSITIONS", position_cases),
    ("SYMBOLS", symbol_cases),
    ("WHOLE STEPS", step_cases),
)
COLUMNS = ("times the floor", "1 thread", "2 threads", "M/s", "bits", "over %", "peer", "slower", "goal")
INTRODUCTION = (
    "Residual and gradient are float32 with normal values. Times are multiples of the floor, which is "
    "torch's residual += gradient of as many elements in one thread: the median and, in brackets, the 10th "
    "to the 90th percentile of {least} to {most} rounds. In a round, contenders take turns, each right "
    "after its own floor. Before each run, the residual is restored."
)
NOTES = (
    "M/s: million items a second in one thread, and bits: bits an item. Items are elements of the gradient; "
    "of POSITIONS what is sent; of SYMBOLS the symbols. Over: what the bytes take more than the entropy of "
    "independent items of these frequencies.",
    'Competitors run in one thread. "Slower" is their time in multiples of ours in one thread, both in the '
    "same round. Those marked with * take seconds with many elements and are measured with the fewest only. "
    "Our rules also sum the residual's squares and look for NaN and Inf, which competitors do not.",
    "RULES are passes alone, from gradient to update, and keep a residual. WHOLE STEPS begin with the "
    "gradient and end with a message (write), or begin with a message and end with a sum (read); they "
    "include the CRC-32 and all checks.",
    "POSITIONS and SYMBOLS find their input in the caches, as after a pass: of two runs behind one another "
    "the second is timed. All other runs find there what setting the residual back has left.",
    "Goals are one thread's: at most x floors, at least M/s, at most % over the bound, at least so many "
    "times as fast as the peer.",
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    elements: tuple[int, ...]
    """Of the gradients, ascending."""
    rounds: Rounds
    peer_rounds: Rounds


FULL = Sizes((7_600_000, 25_600_000), Rounds(3, 25, seconds=1.0), Rounds(1, 9, seconds=0.7))
QUICK = Sizes((100_000, 200_000), Rounds(2, 2, seconds=0), Rounds(1, 1, seconds=0))


def rows_of(case: Case, arena: Arena, sizes: Sizes) -> Iterator[tuple[str, ...]]:
    """A case's row, and one more for each peer but the first."""
    works: list[Work] = [partial(case.run, threads) for threads in case.threads]
    timings = arena.against_floor(works, sizes.rounds, warm=case.warm)
    rate = case.items / timings[0].seconds.middle / 1e6
    over = case.over(case.size)
    reached: dict[Quantity, float] = {"floor": timings[0].ratio.middle, "rate": rate}
    if over is not None:
        reached["over"] = over
    peers = []
    for peer in case.peers:
        if peer.slow and arena.elements > min(sizes.elements):
            continue
        size = peer.check()
        slower = arena.against(works[0], peer.run, sizes.peer_rounds, warm=case.warm).ratio.middle
        reached.setdefault("peer", slower)
        peers.append((peer_name(case, peer, size), number(slower)))
    verdicts = [goal.verdict(reached[goal.of]) for goal in case.goals if goal.of in reached]
    first, *others = peers or [("", "")]
    yield (
        case.name,
        cell(timings[0].ratio),
        cell(timings[1].ratio) if len(timings) > 1 else "",
        number(rate),
        "" if case.size is None else number(8 * case.size / case.items),
        "" if over is None else f"{over:+.2f}",
        *first,
        ", ".join(verdicts),
    )
    for other in others:
        yield ("", "", "", "", "", "", *other, "")


def peer_name(case: Case, peer: Peer, size: int | None) -> str:
    """With what its bytes take over the bound, unless they are as many as ours."""
    over = None if size == case.size else case.over(size)
    name = peer.name + ("*" if peer.slow else "")
    return name if over is None else f"{name}, {over:+.1f}%"


def cell(ratio: Spread) -> str:
    """A spread in few characters."""
    return f"{_short(ratio.middle, 3)} ({_short(ratio.low, 2)}-{_short(ratio.high, 2)})"


def _short(value: float, digits: int) -> str:
    """With so many significant digits, but at most three behind the point."""
    decimals = digits - 1 - math.floor(math.log10(value)) if value else 0
    return f"{value:,.{min(max(decimals, 0), 3)}f}"


def measure(sizes: Sizes) -> Table:
    """All figures."""
    torch.set_num_threads(1)
    started = perf_counter()
    rows: list[tuple[str, ...]] = []
    for elements in sizes.elements:
        arena = Arena(elements)
        for title, cases in GROUPS:
            at = len(rows)
            arena.floor_seconds.clear()
            for case in cases(arena):
                print(f"{perf_counter() - started:4.0f} s: {elements:,}, {case.name}", file=sys.stderr)
                rows += rows_of(case, arena, sizes)
            floor = number(1e3 * Spread.of(arena.floor_seconds).middle)
            blanks = ("",) * (len(COLUMNS) - 2)
            rows.insert(at, (f"{title}, n = {elements / 1e6:g}M", f"floor: {floor} ms", *blanks))
    return Table("Ratios of every rule and codec", COLUMNS, rows, NOTES)


def main(arguments: Sequence[str]) -> None:
    options: Options = read_options("compressors.py", "What rules and codecs cost.", arguments)
    sizes = QUICK if options.quick else FULL
    load_before = load()
    table = measure(sizes)
    introduction = INTRODUCTION.format(least=sizes.rounds.least, most=sizes.rounds.most)
    publish("compressors", options, introduction, [table], load_before)


if __name__ == "__main__":
    main(sys.argv[1:])
