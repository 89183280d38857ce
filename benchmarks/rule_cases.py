"""Rules: the pass alone, from gradient and residual to update and what is left."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from arena import Arena, Work
from case import Case, Goal, Peer, require_same
from rule_peers import RulePeers, ThresholdRule

from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.config import CompressedMethod, read_config
from taugrad.compressors.ops.cpu import avx512
from taugrad.compressors.ops.cpu.passes import CpuOps
from taugrad.compressors.ops.cpu.threads import run_all, shares
from taugrad.compressors.ops.cpu.threshold import threshold_pass
from taugrad.compressors.ops.readback import Readback
from taugrad.compressors.rules.base import BucketInput, Context

CHUNK, KEEP = 4096, 41
GOAL_DENSITY = 0.01
"""Threshold passes have a goal at this density and below."""


@dataclass(frozen=True)
class Tolerance:
    """How much a peer's residual may differ: rounding moves some elements into the next bin."""

    most: float = 0.0
    """Of an element."""
    beyond: float = 0.0
    """The share of elements that may differ more."""


EXACT = Tolerance()
BIN_EDGES = Tolerance(most=1e-5, beyond=1e-3)
BIN_MEANS = Tolerance(most=5e-3, beyond=1e-3)
"""Our bins' means are float16 numbers that a block scales, and equal elements share a bin."""


@dataclass(frozen=True)
class Beside:
    """The same rule elsewhere."""

    name: str
    run: Callable[[RulePeers, float], object]
    """Given tau."""
    tolerance: Tolerance = EXACT
    slow: bool = False


@dataclass(frozen=True)
class Row:
    """A rule and what it is measured against."""

    name: str
    line: str
    """The method, with `{tau}` for the threshold."""
    peer: Beside | None = None
    goal: Goal | None = None
    density: float = 0.01
    """The share that tau lets through."""
    threads: tuple[int, ...] = (1, 2)


def _threshold(rule: ThresholdRule, density: float) -> Row:
    goal = Goal("floor", 1.2) if avx512.supported() and density <= GOAL_DENSITY else None
    peer = Beside("torch operations", lambda peers, tau: peers.threshold(rule, tau))
    return Row(f"{rule} {100 * density:g}%", f"{rule}(tau={{tau}})", peer, goal, density)


def _linear(name: str, block: int) -> Row:
    peer = Beside("torch operations", lambda peers, _: peers.linear(8, block), BIN_EDGES)
    return Row(f"linear 8 bit, {name}", f"linear(block={block})", peer, Goal("floor", 2))


def _quantile(name: str, block: int) -> Row:
    peer = Beside("NumPy argsort", lambda peers, _: peers.quantile(8, block), BIN_MEANS, slow=True)
    return Row(f"quantile 8 bit, {name}", f"quantile(block={block})", peer, Goal("peer", 5))


ROWS = (
    _threshold("wgt", 0.1),
    _threshold("wgt", 0.01),
    _threshold("wgt", 0.001),
    _threshold("bgt", 0.01),
    _threshold("qgt", 0.01),
    _threshold("strom", 0.01),
    Row("topk 1%", "topk(density=0.01)", Beside("torch.topk", lambda p, _: p.topk(0.01)), Goal("peer", 10)),
    Row("topk 1%, sampled", "topk(density=0.01, sampled=True)"),
    Row(
        f"chunked_topk {CHUNK}/{KEEP}",
        f"chunked_topk(chunk={CHUNK}, keep={KEEP}, quantize=None)",
        Beside("torch.topk of rows", lambda peers, _: peers.chunked_topk(CHUNK, KEEP)),
        threads=(1,),
    ),
    _linear("block 2048", 2048),
    _linear("whole", 0),
    _quantile("block 2048", 2048),
    _quantile("whole", 0),
    Row("entropy", "entropy"),
    Row("fp16", "fp16", Beside("torch .to()", lambda peers, _: peers.half(torch.float16))),
    Row("bf16", "bf16", Beside("torch .to()", lambda peers, _: peers.half(torch.bfloat16))),
    Row("fp8, block 2048", "fp8", Beside("torch .to()", lambda peers, _: peers.float8(2048))),
    Row("wgt 1% | quantile 8 bit", "wgt(tau={tau}) | quantile"),
    Row("wgt 1% | linear 8 bit", "wgt(tau={tau}) | linear"),
)


def rule_cases(arena: Arena) -> Iterator[Case]:
    """The floor, the rules, and what a CPU without AVX-512 would do."""
    peers = RulePeers(arena)
    numpy_add = partial(np.add, arena.residual_N, arena.gradient_N, arena.residual_N)
    floor = Peer("NumPy in-place add", numpy_add, lambda: None)
    yield Case("torch r += g", arena.elements, partial(add_with, arena), peers=(floor,))
    for row in ROWS:
        tau = float(arena.tau(row.density))
        run = rule_pass(arena, row.line.format(tau=repr(tau)))
        beside = () if row.peer is None else (_peer(arena, row.peer, run, partial(row.peer.run, peers, tau)),)
        goals = () if row.goal is None else (row.goal,)
        yield Case(row.name, arena.elements, run, row.threads, peers=beside, goals=goals)
    yield Case("wgt 1%, without AVX-512", arena.elements, _portable(arena, arena.tau(0.01)))


def make(line: str) -> Compressor:
    """A method from its line."""
    config: CompressedMethod = read_config(line)  # type: ignore[assignment]
    return Compressor(config)


def rule_pass(arena: Arena, line: str) -> Callable[[int], object]:
    """A rule at work on the whole arena as one parameter."""
    compressor = make(line)
    segments = compressor.layout(["all"], [arena.elements]).sent
    parts = [Part("all", arena.gradient, arena.residual)]
    context, ops = Context(), {threads: CpuOps(threads) for threads in (1, 2)}

    def work(threads: int) -> object:
        readback = Readback(ops[threads])
        given = BucketInput(segments, parts, {0}, context, ops[threads], readback, readback)
        return compressor.rule.run(given)

    return work


def _peer(arena: Arena, beside: Beside, run: Callable[[int], object], peer_run: Work) -> Peer:
    def check() -> None:
        """Where both leave the same residual they sent the same."""
        arena.reset()
        run(1)
        kept_N = arena.residual_N.copy()
        arena.reset()
        peer_run()
        different = np.abs(kept_N - arena.residual_N) > beside.tolerance.most
        require_same(beside.name, bool(different.mean() <= beside.tolerance.beyond))

    return Peer(beside.name, peer_run, check, beside.slow)


def add_with(arena: Arena, threads: int) -> None:
    """The floor, shared by threads as the passes are."""
    pieces = [slice(*share) for share in shares(arena.elements, threads)]
    run_all([partial(arena.residual[at].add_, arena.gradient[at]) for at in pieces], threads)


def _portable(arena: Arena, tau: np.float32) -> Callable[[int], object]:
    words, values = CpuOps().target(arena.elements, "wgt")
    return lambda threads: threshold_pass(
        "wgt", arena.residual_N, arena.gradient_N, tau, words, values, threads=threads, vectorized=False
    )
