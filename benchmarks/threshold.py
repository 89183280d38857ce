"""What the threshold pass costs, next to adding the gradient to the residual and to its peers.

    python benchmarks/threshold.py [--quick] [--write]

Every figure is a ratio to the floor, torch's `residual.add_(gradient)`: a rule that keeps a residual
cannot do less. The floor is timed anew right before each contender, so that both see the same machine.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from report import Options, Spread, Table, load, number, publish, read_options, verdict
from torch import Tensor

from taugrad.compressors import bucket, message
from taugrad.compressors.codecs.registry import CODECS
from taugrad.compressors.kernels import avx512
from taugrad.compressors.kernels.threshold import ThresholdRule, threshold_pass
from taugrad.compressors.update import SparseUpdate

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt")
DENSITIES = (0.1, 0.01, 0.001)
GOAL_DENSITY = 0.01
GOAL = 1.2
"""How often the floor's time a fused pass may take at GOAL_DENSITY, on a CPU with AVX-512."""
FLOOR_ROW = "torch add_, the floor"

INTRODUCTION = (
    "Residual and gradient are float32 with normal values, {n:,} elements each; one thread. The figures are "
    "times the floor: the median and, in brackets, the 10th to the 90th percentile of {fast} rounds ({slow} "
    "for torch's operations and top-k). In a round the contenders take turns, each right after a floor of "
    "its own. The residual is set back outside the timed region."
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    elements: int
    rounds: int
    slow_rounds: int
    """Rounds of contenders that take many times as long as the floor."""


FULL = Sizes(25_600_000, rounds=25, slow_rounds=5)
QUICK = Sizes(2_560_000, rounds=3, slow_rounds=2)


class Arena:
    """The arrays that all contenders work on, and the stopwatch."""

    def __init__(self, elements: int) -> None:
        rng = np.random.default_rng(0)
        self.gradient_N = rng.standard_normal(elements, dtype=np.float32)
        self.start_N = rng.standard_normal(elements, dtype=np.float32) * np.float32(0.5)
        """The residual before each pass."""
        self.residual_N = self.start_N.copy()
        self.gradient, self.residual = torch.from_numpy(self.gradient_N), torch.from_numpy(self.residual_N)
        self.magnitude = (self.residual + self.gradient).abs()
        """What a pass compares with tau."""
        self.scratch = bucket.Scratch()
        self.floor_seconds: list[float] = []

    @property
    def elements(self) -> int:
        """Of the gradient."""
        return self.gradient_N.size

    def tau(self, density: float) -> np.float32:
        """The threshold that a share of the elements reaches."""
        rank = self.elements - self.count(density)
        tau: np.float32 = np.partition(self.magnitude.numpy(), rank)[rank]
        return tau

    def count(self, density: float) -> int:
        """Elements of a share."""
        return max(1, round(density * self.elements))

    def reset(self) -> None:
        """Sets the residual back to where each pass begins."""
        np.copyto(self.residual_N, self.start_N)

    def add(self) -> None:
        """The floor."""
        self.residual.add_(self.gradient)

    def seconds(self, work: Callable[[], object]) -> float:
        """Times one run, from the same residual."""
        self.reset()
        started = perf_counter()
        work()
        return perf_counter() - started

    def ratio(self, work: Callable[[], object]) -> float:
        """Times one run against a floor of its own."""
        floor = self.seconds(self.add)
        self.floor_seconds.append(floor)
        return self.seconds(work) / floor

    def compare(self, contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, Spread]:
        """Lets contenders take turns, after one round to warm up; by name, their ratios to the floor."""
        ratios: dict[str, list[float]] = {name: [] for name in contenders}
        for work in contenders.values():
            self.ratio(work)
        self.floor_seconds.clear()
        for _ in range(rounds):
            for name, work in contenders.items():
                ratios[name].append(self.ratio(work))
        return {name: Spread.of(values) for name, values in ratios.items()}


class TorchPass:
    """The same rules in torch operations, as a plain but careful program would write them.

    Dense buffers are reused. Unlike the fused pass it neither sums the residual's squares nor looks for
    values that are not finite.
    """

    def __init__(self, arena: Arena) -> None:
        self._residual, self._gradient = arena.residual, arena.gradient
        self._magnitude = torch.empty_like(arena.residual)
        self._reached = torch.empty(arena.elements, dtype=torch.bool)

    def run(self, rule: ThresholdRule, tau: float) -> tuple[Tensor, Tensor]:
        """One pass over the residual, which it changes.

        Returns:
            The words (position << 1 | sign, int64), and what stands beside them.
        """
        self._residual.add_(self._gradient)
        torch.abs(self._residual, out=self._magnitude)
        torch.ge(self._magnitude, tau, out=self._reached)
        positions_K = self._reached.nonzero().squeeze(1)
        taken_K = self._residual.index_select(0, positions_K)
        words_K = (positions_K << 1) | (taken_K < 0)
        if rule == "wgt":
            self._residual.index_fill_(0, positions_K, 0.0)
            return words_K, taken_K
        magnitude_K = taken_K.abs()
        if rule == "bgt":
            values_K = torch.empty(0, dtype=torch.uint8)
            left_K = magnitude_K - tau
        else:
            levels_K = (magnitude_K / tau).floor_().clamp_(max=255)
            values_K = levels_K.to(torch.uint8)
            left_K = magnitude_K - levels_K * tau
        # What is left of a is sign(a) * (|a| - what was sent).
        self._residual.index_copy_(0, positions_K, left_K * taken_K.sign())
        return words_K, values_K


def fused_pass(arena: Arena, rule: ThresholdRule, tau: np.float32, *, vectorized: bool) -> Callable[[], int]:
    """The fused pass over the whole arena, ready to run; it returns how many elements were sent."""
    arena.scratch.reserve(rule, arena.elements)
    words, values = arena.scratch.words, arena.scratch.values

    def run() -> int:
        return threshold_pass(
            rule, arena.residual_N, arena.gradient_N, tau, words, values, vectorized=vectorized
        ).sent

    return run


def check_peer(arena: Arena, peer: TorchPass, rule: ThresholdRule, tau: np.float32) -> None:
    """Makes sure that peer and fused pass do the same work.

    Raises:
        RuntimeError: they send different elements or keep another residual.
    """
    arena.reset()
    sent = fused_pass(arena, rule, tau, vectorized=False)()
    words_K = arena.scratch.words[:sent].astype(np.int64)
    kept_N = arena.residual_N.copy()
    arena.reset()
    peer_words, _ = peer.run(rule, float(tau))
    if not np.array_equal(words_K, peer_words.numpy()):
        raise RuntimeError(f"torch's {rule} sends other elements than the fused pass")
    if not np.array_equal(kept_N, arena.residual_N):
        raise RuntimeError(f"torch's {rule} keeps another residual than the fused pass")


def measure_passes(arena: Arena, sizes: Sizes) -> Table:
    """The pass alone: fused, in torch operations, and torch's top-k, at every density."""
    numpy_row = "NumPy in-place add"
    cells: dict[str, list[Spread]] = {}

    def note(ratios: dict[str, Spread]) -> None:
        for name, spread in ratios.items():
            cells.setdefault(name, []).append(spread)

    peer = TorchPass(arena)
    floors: list[str] = []
    for density in DENSITIES:
        tau = arena.tau(density)
        fast: dict[str, Callable[[], object]] = {
            numpy_row: lambda: np.add(arena.residual_N, arena.gradient_N, out=arena.residual_N)
        }
        slow: dict[str, Callable[[], object]] = {}
        if avx512.supported():
            for rule in RULES:
                fast[f"{rule}, AVX-512"] = fused_pass(arena, rule, tau, vectorized=True)
        for rule in RULES:
            fast[f"{rule}, portable"] = fused_pass(arena, rule, tau, vectorized=False)
        for rule in RULES:
            check_peer(arena, peer, rule, tau)
            slow[f"{rule}, torch operations"] = _peer_pass(peer, rule, float(tau))
        slow["torch.topk of the magnitudes, nothing else"] = _topk(arena, arena.count(density))
        note(arena.compare(fast, sizes.rounds))
        floors.append(f"{number(1e3 * Spread.of(arena.floor_seconds).middle)} ms")
        note(arena.compare(slow, sizes.slow_rounds))

    at_goal = DENSITIES.index(GOAL_DENSITY)
    rows = [(FLOOR_ROW, *floors, "")]
    for name, spreads in cells.items():
        goal = verdict(spreads[at_goal].middle, GOAL) if name.endswith("AVX-512") else ""
        rows.append((name, *map(str, spreads), goal))
    return Table(
        "One pass, by the share of elements sent",
        ("times the floor", *(f"{100 * density:g}%" for density in DENSITIES), f"goal at {GOAL_DENSITY:.0%}"),
        rows,
        (
            "The fused passes also sum the residual's squares and look for NaN and Inf; torch's operations "
            "do neither.",
        ),
    )


def _peer_pass(peer: TorchPass, rule: ThresholdRule, tau: float) -> Callable[[], object]:
    return lambda: peer.run(rule, tau)


def _topk(arena: Arena, k: int) -> Callable[[], object]:
    return lambda: torch.topk(arena.magnitude, k, sorted=False)


def measure_messages(arena: Arena, sizes: Sizes) -> Table:
    """From gradient to message and back, for every rule and codec."""
    tau = float(arena.tau(GOAL_DENSITY))
    part = bucket.Part("all", arena.gradient, arena.residual)
    dense = torch.zeros(arena.elements)
    rows: list[tuple[str, ...]] = []
    for rule in RULES:
        arena.reset()
        update, _ = bucket.compress(rule, tau, [part], arena.scratch)
        assert isinstance(update, SparseUpdate)
        written = {codec.name: message.write(update, codec.name) for codec in CODECS}
        ratios = arena.compare(
            {
                key: work
                for name, own in written.items()
                for key, work in (
                    (f"write {name}", _write(arena, part, rule, tau, name)),
                    (f"read {name}", _read(own, dense)),
                )
            },
            sizes.rounds,
        )
        for name, own in written.items():
            bits = f"{8 * own.size / arena.elements:.3f}"
            rows.append((rule, name, str(ratios[f"write {name}"]), str(ratios[f"read {name}"]), bits))
    return Table(
        f"From gradient to message and back, {GOAL_DENSITY:.0%} sent",
        ("rule", "codec", "compress and write", "read and add", "bits an element"),
        rows,
        (
            "Times the same floor. Writing and reading include the CRC-32 of the whole message; reading "
            "includes every check.",
        ),
    )


def _write(
    arena: Arena, part: bucket.Part, rule: ThresholdRule, tau: float, codec: str
) -> Callable[[], object]:
    def run() -> object:
        update, _ = bucket.compress(rule, tau, [part], arena.scratch)
        assert isinstance(update, SparseUpdate)
        return message.write(update, codec)

    return run


def _read(own: NDArray[np.uint8], dense: Tensor) -> Callable[[], object]:
    def run() -> None:
        update = message.read(own)
        assert isinstance(update, SparseUpdate)
        bucket.add_to(update, dense)

    return run


def measure(sizes: Sizes) -> list[Table]:
    """All figures."""
    torch.set_num_threads(1)
    arena = Arena(sizes.elements)
    return [measure_passes(arena, sizes), measure_messages(arena, sizes)]


def main(arguments: Sequence[str]) -> None:
    options: Options = read_options("threshold.py", "What the threshold pass costs.", arguments)
    sizes = QUICK if options.quick else FULL
    load_before = load()
    tables = measure(sizes)
    introduction = INTRODUCTION.format(n=sizes.elements, fast=sizes.rounds, slow=sizes.slow_rounds)
    publish("threshold", options, introduction, tables, load_before)


if __name__ == "__main__":
    main(sys.argv[1:])
