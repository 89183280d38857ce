"""The ways to train that a plan compares."""

from collections.abc import Sequence
from dataclasses import replace

from taugrad.compressors.method import CompressedMethod, Method, read_config
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import GradientsSync, RealSync, real
from taugrad.platform.synchronization.validation import check_method

from ..advice import value_like
from ..ways import ways_of
from .calibrated import HALF
from .candidate import Candidate

POWERSGD = "powersgd(rank=4)"
"""Compared as a baseline, and never probed."""


def candidates_of(spec: RunSpec, methods: Sequence[str] = (), *, sites: bool = False) -> list[Candidate]:
    """The spec's own way, all-reduce in float32 and 16 bits, and others, without duplicates.

    With sites, or where the spec has islands, what exchanges in each step is also compared with islands.

    Args:
        spec: the run to plan for.
        methods: lines of compressors to compare in the pattern allgather, instead of those of the advice.
        sites: whether workers are at several sites, so that messages may go to each site once.

    Raises:
        ValueError: a line is not a compressor.
    """
    exchange, kind = GradientsSync(), spec.training.optimizer.kind

    def given(method: Method, sync: RealSync) -> Candidate:
        return Candidate(str(method), sync, value_like(method, sync, kind))

    spec_way = [given(spec.compressor, real(spec.sync))]
    dense = [Candidate("none", exchange), Candidate(HALF, exchange)]
    if methods:
        others = [given(read_config(line), exchange) for line in methods]
        if sites:
            once = GradientsSync(pattern="hierarchical")
            others += [given(m, once) for m in map(read_config, methods) if isinstance(m, CompressedMethod)]
    else:
        others = [way.planned for way in ways_of(spec, sites=sites)]
        others.append(given(read_config(POWERSGD), exchange))
    island = getattr(real(spec.sync), "island", None) or ("host" if sites else None)
    if island is not None:
        plain = [
            candidate
            for candidate in (dense[0], *others)
            if candidate.sync == exchange and candidate.method != POWERSGD
        ]
        others += [replace(candidate, sync=GradientsSync(island=island), family="") for candidate in plain]
    known = {candidate.key: candidate for candidate in (*dense, *others)}
    return list(
        {
            candidate.key: known.get(candidate.key, candidate) for candidate in (*spec_way, *dense, *others)
        }.values()
    )


def measured_methods(candidates: Sequence[Candidate]) -> list[str]:
    """The lines of compressors that a calibration must contain."""
    return sorted({candidate.method for candidate in candidates if candidate.method != HALF})


def check_candidates(candidates: Sequence[Candidate]) -> None:
    """Refuses a method that cannot work in its mode, with a ValueError."""
    for candidate in candidates:
        if candidate.method != HALF:
            method: Method = read_config(candidate.method)
            check_method(candidate.sync, method)
