"""The ways to train a run: its own, and those of the advice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taugrad.compressors.method import PowerSGD
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import GradientsSync, SimulatedSync, real

from .advice import (
    ADAPTIVE,
    SETTINGS,
    USUAL,
    Pattern,
    Setting,
    local_rate,
    spec_lines,
    value_like,
)
from .auto_specs import with_method
from .momentum import in_optimizer, momentum_first
from .plan.candidate import Candidate

OWN = "own"
"""The family of the spec's own way."""


@dataclass(frozen=True)
class Way:
    """A way to train a run.

    Attributes:
        spec: the run by real workers.
        family: of ways that differ in degree only.
        degree: see `advice.Setting`.
        value: expected worth of a step; see `advice.Setting`.
        usual: whether it is the default advice.
    """

    spec: RunSpec
    family: str
    degree: tuple[float, ...] = ()
    value: float = 1.0
    usual: bool = False

    @property
    def planned(self) -> Candidate:
        """The candidate of a plan."""
        sync = real(self.spec.sync)
        family = "" if self.family == OWN else f"{self.family} {self.degree}"
        return Candidate(str(self.spec.compressor), sync, self.value, family, self.usual)

    @property
    def is_exact(self) -> bool:
        """Whether its steps are those of an uncompressed training."""
        return self.family == "exact"

    @property
    def has_outer_momentum(self) -> bool:
        """Whether exchanges have a momentum."""
        return real(self.spec.sync).outer_momentum > 0

    @property
    def every(self) -> int:
        """Steps from one exchange to the next; 0: an epoch."""
        return real(self.spec.sync).local_steps

    def loses_less_than(self, other: "Way") -> bool:
        """Whether it is of the same family and of lower degree."""
        return (
            self.family == other.family
            and self.degree != other.degree
            and all(one <= two for one, two in zip(self.degree, other.degree, strict=True))
        )

    def learns_like(self, other: "Way") -> bool:
        """Whether only patterns differ."""
        return self.family == other.family and self.degree == other.degree

    def __str__(self) -> str:
        return str(self.planned)


def ways_of(spec: RunSpec, workers: int | None = None, *, sites: bool = False) -> list[Way]:
    """The spec's own way, unless it is `left_out`, all-reduce, and others for its model and optimizer.

    Ways with the same family and degree learn alike, and differ in patterns.

    Args:
        spec: the run.
        workers: their number; None: `workers.count`.
        sites: whether workers are at several sites.
    """
    count = spec.workers.count if workers is None else workers
    base = uncompressed(spec)
    own_spec = spec.model_copy(update={"sync": real(spec.sync)})
    kind = spec.training.optimizer.kind
    ways = [Way(base, "exact")]
    for setting in SETTINGS:
        if setting.is_per_step_sparse and kind in ADAPTIVE:
            continue
        patterns: list[Pattern] = ["allgather"]
        if setting.line != "none" and not setting.is_per_step_sparse:
            patterns.append("sharded")
        if sites:
            patterns.append("hierarchical")
        for pattern in patterns:
            try:
                so = _by(base, setting, count, pattern, faster=_is_per_step(spec))
            except ValueError:  # the method cannot work so with the other fields; pydantic's is one
                continue
            # No degrees: with momentum before the threshold more elements are not known to lose less.
            family = setting.line if setting.is_per_step_sparse else setting.family
            ways.append(Way(so, family, setting.degree, setting.value, setting == USUAL))
    known = {way.spec.fingerprint() for way in ways}
    if left_out(spec) is None and own_spec.fingerprint() not in known:
        ways.append(Way(own_spec, OWN, value=value_like(own_spec.compressor, real(own_spec.sync), kind)))
    return list({way.spec.fingerprint(): way for way in ways}.values())


def left_out(spec: RunSpec) -> str | None:
    """The reason why the spec's own way is not among its ways; None if it is."""
    if isinstance(spec.compressor, PowerSGD):
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
    """The run without compression, at the learning rates of its ways.

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


def changes(spec: RunSpec, way: RunSpec) -> list[str]:
    """Lines of a spec: the fields in which a way differs from it."""
    given, other = spec.model_dump(mode="json"), way.model_dump(mode="json")
    fields: dict[str, Any] = {}
    if other["sync"] != given["sync"]:
        fields["sync"] = {"mode": way.sync.mode} | way.sync.model_dump(mode="json", exclude_defaults=True)
    if other["compressor"] != given["compressor"]:
        fields["compressor"] = str(way.compressor)
    before, after = given["training"]["optimizer"], other["training"]["optimizer"]
    optimizer = {name: value for name, value in after.items() if value != before[name]}
    if optimizer:
        fields["training"] = {"optimizer": {"kind": after["kind"]} | optimizer}
    return spec_lines(fields)


def _is_per_step(spec: RunSpec) -> bool:
    """Whether it has no local steps, to which its learning rate belongs."""
    return not real(spec.sync).is_local


def _by(base: RunSpec, setting: Setting, workers: int, pattern: Pattern, *, faster: bool) -> RunSpec:
    """The run by a setting.

    The optimizer's momentum moves before a threshold, if possible. Local steps of an adaptive optimizer get
    their learning rate if the run's own is not of local steps (`faster`).

    Raises:
        ValueError: the method cannot work with the other fields.
    """
    sync: Mapping[str, Any] = setting.sync(workers, pattern)
    if not setting.every and pattern == "hierarchical":
        if setting.family == "exact":
            raise ValueError("an all-reduce goes through torch")
        sync = {"mode": "gradients", "pattern": "hierarchical"}
    elif not setting.every and pattern == "allgather":
        sync = real(base.sync).model_dump(mode="json")
    run = RunSpec.model_validate({**with_method(base, setting.line), "sync": sync})
    if setting.family in ("local", "sparseloco") and faster and base.training.optimizer.kind in ADAPTIVE:
        return with_rate(run, local_rate(base.training.optimizer.lr, workers))
    return momentum_first(run) if setting.is_per_step_sparse else run
