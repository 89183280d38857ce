"""Whole steps: from gradient to message (rule, codec, CRC-32), and from message to sum (all checks)."""

from collections.abc import Iterator

import torch
from arena import Arena
from case import Case
from rule_cases import CHUNK, KEEP, make

from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.ops.cpu.passes import CpuOps
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire.message import NonFinite

LINES = (
    "wgt(tau={tau})",
    "bgt(tau={tau}) | raw",
    "strom(tau={tau}) | golomb_rice",
    "qgt(tau={tau}) | golomb_rice | huffman",
    "topk(density=0.01) | linear",
    f"chunked_topk(chunk={CHUNK}, keep={KEEP})",
    "linear | huffman",
    "quantile",
    "fp16",
)
"""Methods; `tau` lets 1% through."""


def step_cases(arena: Arena) -> Iterator[Case]:
    """Two rows a method."""
    tau = repr(float(arena.tau(0.01)))
    for line in LINES:
        name = line.replace("(tau={tau})", " 1%").replace("(density=0.01)", " 1%")
        name = name.replace(f"(chunk={CHUNK}, keep={KEEP})", f" {CHUNK}/{KEEP}")
        yield from _method(arena, name, line.format(tau=tau))


def _method(arena: Arena, name: str, line: str) -> Iterator[Case]:
    compressor = make(line)
    by_threads = {threads: Compressor(compressor.config, CpuOps(threads)) for threads in (1, 2)}
    layout = compressor.layout(["all"], [arena.elements])
    residual = arena.residual if compressor.rule.needs_residual or compressor.config.decay else None
    parts = [Part("all", arena.gradient, residual)]
    context = Context()
    total = torch.zeros(arena.elements)

    def compress(threads: int) -> object:
        return by_threads[threads].compress(parts, layout, context)

    arena.reset()
    payload = compressor.compress(parts, layout, Context()).payload

    def read_and_add(threads: int) -> None:
        incoming = compressor.read(payload, layout)
        assert not isinstance(incoming, NonFinite)
        compressor.add(incoming, total)

    yield Case(f"{name}: write", arena.elements, compress, size=payload.size)
    yield Case(f"{name}: read", arena.elements, read_and_add, threads=(1,))
