"""The candidates for a run: its own way to train, and those of the advice."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taugrad.compressors.methods import CompressedMethod, Method, read_config
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import GradientsSync, RealSync, SimulatedSync, real
from taugrad.platform.spec.validation import check_method

from ..advice import ADAPTIVE, RECIPES, USUAL, Pattern, Recipe, local_rate, spec_lines, worth_like
from ..auto_specs import in_optimizer, momentum_first, with_method
from .calibrated import HALF
from .candidate import Candidate

POWERSGD = "powersgd(rank=4)"
"""Compared as a baseline, and never probed."""


def candidates_of(spec: RunSpec, workers: int | None = None, *, sites: bool = False) -> list[Candidate]:
    """The spec's own way, unless it is `left_out`, all-reduce, and others for its model and optimizer.

    All are runs. Those with the same family and degree learn alike, and differ in patterns.

    Args:
        spec: the run.
        workers: their number; None: `workers.count`.
        sites: whether workers are at several sites.
    """
    count = spec.workers.count if workers is None else workers
    base = uncompressed(spec)
    own_spec = spec.model_copy(update={"sync": real(spec.sync)})
    kind = spec.training.optimizer.kind
    found = {base.fingerprint(): _candidate(base, family="exact")}
    for recipe in RECIPES:
        if recipe.is_per_step_sparse and kind in ADAPTIVE:
            continue
        patterns: list[Pattern] = ["allgather"]
        if recipe.line != "none" and not recipe.is_per_step_sparse:
            patterns.append("sharded")
        if sites and recipe.family != "exact":  # an all-reduce goes through torch
            patterns.append("hierarchical")
        for pattern in patterns:
            try:
                run = _by(base, recipe, count, pattern, faster=_is_per_step(spec))
            except ValueError:  # the method cannot work so with the other fields; pydantic's is one
                continue
            # No degrees: with momentum before the threshold more elements are not known to lose less.
            family = recipe.line if recipe.is_per_step_sparse else recipe.family
            found[run.fingerprint()] = _candidate(
                run, worth=recipe.worth, family=family, degree=recipe.degree, usual=recipe == USUAL
            )
    if left_out(spec) is None and own_spec.fingerprint() not in found:
        worth = worth_like(own_spec.compressor, real(own_spec.sync), kind)
        found[own_spec.fingerprint()] = _candidate(own_spec, worth=worth)
    return list(found.values())


def _candidate(spec: RunSpec, **known: Any) -> Candidate:
    return Candidate(str(spec.compressor), real(spec.sync), spec=spec, **known)


def left_out(spec: RunSpec) -> str | None:
    """The reason why the spec's own way is not among its candidates; None if it is."""
    if spec.compressor.brings_exchange:
        return f"{spec.compressor}: cannot be simulated, so it cannot be probed"
    if (island := getattr(real(spec.sync), "island", None)) is not None:
        return f"sync.island = {island}: cannot be simulated, so it cannot be probed"
    return None


def uncompressed(spec: RunSpec) -> RunSpec:
    """The run by DDP's own all-reduce, with momentum in the optimizer."""
    tree = in_optimizer(spec)
    sync = real(spec.sync)
    plain = sync.gathers_buckets and getattr(sync, "island", None) is None
    tree["sync"] = (sync if plain else GradientsSync()).model_dump(mode="json")
    tree["compressor"] = {"kind": "none", "reduction": spec.compressor.reduction}
    return RunSpec.model_validate(tree)


def tuned_references(spec: RunSpec) -> tuple[RunSpec, ...]:
    """The run without compression, at the learning rates of its candidates.

    Local steps of an adaptive optimizer have another rate than steps with the mean gradient.
    """
    base = uncompressed(spec)
    if spec.training.optimizer.kind not in ADAPTIVE:
        return (base,)
    workers = spec.workers.count if _is_per_step(spec) else 1 / spec.workers.count
    return base, with_rate(base, local_rate(spec.training.optimizer.lr, workers))


def with_rate(spec: RunSpec, lr: float) -> RunSpec:
    """The run with another learning rate."""
    tree = spec.model_dump(mode="json")
    tree["training"]["optimizer"]["lr"] = lr
    return RunSpec.model_validate(tree)


def simulated(spec: RunSpec) -> RunSpec:
    """The run with simulated workers."""
    if spec.sync.is_simulated:
        return spec
    return spec.model_copy(update={"sync": SimulatedSync(of=spec.sync)})


def changes(spec: RunSpec, other: RunSpec) -> list[str]:
    """Lines of a spec: the fields in which another run differs from it."""
    given, wanted = spec.model_dump(mode="json"), other.model_dump(mode="json")
    fields: dict[str, Any] = {}
    if wanted["sync"] != given["sync"]:
        fields["sync"] = {"mode": other.sync.mode} | other.sync.model_dump(mode="json", exclude_defaults=True)
    if wanted["compressor"] != given["compressor"]:
        fields["compressor"] = str(other.compressor)
    before, after = given["training"]["optimizer"], wanted["training"]["optimizer"]
    optimizer = {name: value for name, value in after.items() if value != before[name]}
    if optimizer:
        fields["training"] = {"optimizer": {"kind": after["kind"]} | optimizer}
    return spec_lines(fields)


def compared_candidates(
    spec: RunSpec, methods: Sequence[str] = (), *, sites: bool = False
) -> list[Candidate]:
    """The spec's own way, all-reduce in float32 and 16 bits, and others, without duplicates.

    With sites, or where the spec has islands, what exchanges in each step is also compared with islands.

    Args:
        spec: the run to plan for.
        methods: lines of compressors to compare in the mode allgather, instead of those of the advice.
        sites: whether workers are at several sites, so that messages may go to each site once.

    Raises:
        ValueError: a line is not a compressor.
    """
    exchange, kind = GradientsSync(), spec.training.optimizer.kind

    def given(method: Method, sync: RealSync) -> Candidate:
        return Candidate(str(method), sync, worth_like(method, sync, kind))

    spec_way = [given(spec.compressor, real(spec.sync))]
    dense = [Candidate("none", exchange), Candidate(HALF, exchange)]
    if methods:
        others = [given(read_config(line), exchange) for line in methods]
        if sites:
            once = GradientsSync(pattern="hierarchical")
            others += [given(m, once) for m in map(read_config, methods) if isinstance(m, CompressedMethod)]
    else:
        others = candidates_of(spec, sites=sites)
        others.append(given(read_config(POWERSGD), exchange))
    island = getattr(real(spec.sync), "island", None) or ("host" if sites else None)
    if island is not None:
        plain = [
            candidate
            for candidate in (dense[0], *others)
            if candidate.sync == exchange and candidate.method != POWERSGD
        ]
        others += [
            replace(candidate, sync=GradientsSync(island=island), family="", spec=None) for candidate in plain
        ]
    known = {candidate.key: candidate for candidate in (*dense, *others)}
    return list(
        {
            candidate.key: known.get(candidate.key, candidate) for candidate in (*spec_way, *dense, *others)
        }.values()
    )


def check_candidates(candidates: Sequence[Candidate]) -> None:
    """Refuses a method that cannot work in its mode, with a ValueError."""
    for candidate in candidates:
        if candidate.method != HALF:
            method: Method = read_config(candidate.method)
            check_method(candidate.sync, method)


def _is_per_step(spec: RunSpec) -> bool:
    """Whether it has no local steps, to which its learning rate belongs."""
    return not real(spec.sync).is_local


def _by(base: RunSpec, recipe: Recipe, workers: int, pattern: Pattern, *, faster: bool) -> RunSpec:
    """The run by a recipe.

    The optimizer's momentum moves before a threshold, if possible. Local steps of an adaptive optimizer get
    their learning rate if the run's own is not of local steps (`faster`).

    Raises:
        ValueError: the method cannot work with the other fields.
    """
    sync = recipe.sync(workers, pattern)
    if not recipe.every and pattern == "allgather":
        sync = real(base.sync).model_dump(mode="json")
    run = RunSpec.model_validate({**with_method(base, recipe.line), "sync": sync})
    if recipe.family in ("local", "sparseloco") and faster and base.training.optimizer.kind in ADAPTIVE:
        return with_rate(run, local_rate(base.training.optimizer.lr, workers))
    return momentum_first(run) if recipe.is_per_step_sparse else run
