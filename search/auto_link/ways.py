"""The ways in which a run could be trained: its own, and others with the same model, data and optimizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from taugrad.compressors.config import PowerSGD
from taugrad.compressors.tau.density import DensityTau
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import (
    AllGatherSync,
    OuterOptimizer,
    PatternName,
    RealSync,
    ShardedSync,
    SimulatedSync,
    WeightsSync,
    real,
)

from ..adaptive import ADAPTIVE, local_steps
from ..auto_specs import with_method
from ..momentum import in_compressor, in_optimizer
from ..plan.candidates import Candidate

EXACT = "exact"
"""The family of ways without a visible loss: all gradients, in 32 or 16 bits."""
OWN = "own"
"""The family of the spec's own way."""
DENSITIES = (0.1, 0.01, 0.001)
"""Of what is sent in each step."""
LOCAL_STEPS = ((2, 0.2), (4, 0.1), (10, 0.1), (10, 0.02), (30, 0.1))
"""Steps between two exchanges, and the density of an exchange."""
_BITS = (8, 4)
_SPARSE_RULES = ("strom", "wgt")
_DILOCO = OuterOptimizer(lr=0.7, momentum=0.9, nesterov=True)
"""arXiv 2311.08105."""
_ROUNDED_RARELY = (10, 30)
_PATTERNS: tuple[PatternName, ...] = ("allgather", "sharded")
_SPARSELOCO, _SPARSELOCO_EVERY = "chunked_topk(keep=64, decay=0.95) | quantile(bits=2) | chunked", 30


@dataclass(frozen=True)
class Way:
    """A way to train the run.

    Attributes:
        spec: the run so, by real workers.
        family: of ways that differ in degree only.
        degree: how much it departs from exchanging everything in each step, in each respect in which its
            family differs; less loses less.
        longer: whether its steps are longer than the run's own, by their rate or an outer momentum, so that
            one may be worth more.
    """

    spec: RunSpec
    family: str
    degree: tuple[float, ...] = ()
    longer: bool = False

    @property
    def planned(self) -> Candidate:
        """As the plan knows it."""
        return Candidate(str(self.spec.compressor), real(self.spec.sync))

    @property
    def is_exact(self) -> bool:
        """Whether its steps are worth what those of an uncompressed training are."""
        return self.family == EXACT

    @property
    def has_outer_momentum(self) -> bool:
        """Whether exchanges have a momentum, which carries a training ahead in the beginning."""
        sync = real(self.spec.sync)
        return isinstance(sync, WeightsSync) and sync.outer.momentum > 0

    @property
    def every(self) -> int:
        """Steps from one exchange to the next; 0: an epoch."""
        sync = real(self.spec.sync)
        return sync.every if isinstance(sync, WeightsSync) else 1

    def loses_less_than(self, other: "Way") -> bool:
        """Whether that is known before anything is tried."""
        return (
            self.family == other.family
            and self.degree != other.degree
            and all(mine <= its for mine, its in zip(self.degree, other.degree, strict=True))
        )

    def learns_like(self, other: "Way") -> bool:
        """Whether only the way of the messages differs."""
        return self.family == other.family and self.degree == other.degree

    def __str__(self) -> str:
        return str(self.planned)


def ways_of(spec: RunSpec) -> list[Way]:
    """The spec's own way, all-reduce, and others that can work with its model and optimizer.

    Ways with the same family and degree learn alike: their messages differ in how they travel. What cannot be
    simulated is left out (`left_out`).

    Args:
        spec: the run; `workers.count` is at least 2.
    """
    base = uncompressed(spec)
    own = spec.model_copy(update={"sync": real(spec.sync)})
    adaptive = spec.training.optimizer.kind in ADAPTIVE
    faster = adaptive and not isinstance(real(spec.sync), WeightsSync)  # there the rate is of local steps
    there_and_back = ShardedSync()
    found = [Way(base, EXACT)]
    for sync in (real(base.sync), there_and_back):
        found += _possible(Way(base, EXACT), _by, base, "fp16", sync)
    for bits in _BITS:
        for sync in (real(base.sync), there_and_back):
            found += _possible(Way(base, "linear", (32 / bits,)), _by, base, f"linear(bits={bits})", sync)
    for rule in () if adaptive else _SPARSE_RULES:
        for density in DENSITIES:
            # No degrees: with momentum before the threshold more elements are not known to lose less.
            found += _possible(Way(base, f"{rule} at {density:g}"), _sparse, base, rule, density)
    for every, density in LOCAL_STEPS:
        like = Way(base, "local", (every, 1 / density), longer=faster)
        found += _possible(like, local_steps, base, every, density, faster=faster)
    for every in _ROUNDED_RARELY:
        for pattern in _PATTERNS:
            rarely = WeightsSync(every=every, pattern=pattern, outer=_DILOCO)
            like = Way(base, "diloco", (every,), longer=True)
            found += _possible(like, _by, base, "linear(bits=8)", rarely)
    found += _possible(Way(base, "sparseloco"), _by, base, _SPARSELOCO, WeightsSync(every=_SPARSELOCO_EVERY))
    if left_out(spec) is None and own.fingerprint() not in {way.spec.fingerprint() for way in found}:
        found.append(Way(own, OWN))
    return found


def left_out(spec: RunSpec) -> str | None:
    """Why the spec's own way is not among its ways; None where it is."""
    if isinstance(spec.compressor, PowerSGD):
        return f"{spec.compressor}: cannot be simulated, so it cannot be probed"
    return None


def uncompressed(spec: RunSpec) -> RunSpec:
    """The run by DDP's own all-reduce, with momentum in the optimizer."""
    tree = in_optimizer(spec)
    sync = real(spec.sync)
    tree["sync"] = (sync if isinstance(sync, AllGatherSync) else AllGatherSync()).model_dump(mode="json")
    tree["compressor"] = {"kind": "none", "reduction": spec.compressor.reduction}
    return RunSpec.model_validate(tree)


def simulated(spec: RunSpec) -> RunSpec:
    """The run with all workers in one process."""
    if isinstance(spec.sync, SimulatedSync):
        return spec
    return spec.model_copy(update={"sync": SimulatedSync(of=spec.sync)})


def _possible(like: Way, build: Callable[..., RunSpec], *fields: Any, **more: Any) -> list[Way]:
    """A way like this one with the spec that is built, if the method can work so with the other fields."""
    try:
        return [replace(like, spec=build(*fields, **more))]
    except ValueError:  # pydantic's is one
        return []


def _by(base: RunSpec, line: str, sync: RealSync) -> RunSpec:
    tree = with_method(base, line)
    return RunSpec.model_validate({**tree, "sync": sync.model_dump(mode="json")})


def _sparse(base: RunSpec, rule: str, density: float) -> RunSpec:
    """A threshold in each step, with momentum before it where the optimizer's can be moved there."""
    tau: Mapping[str, Any] = DensityTau(target=density).model_dump(mode="json")
    sparse = RunSpec.model_validate(with_method(base, f"{rule}(0.1) | golomb_rice", {"tau": tau}))
    try:
        return RunSpec.model_validate(in_compressor(sparse))
    except ValueError:
        return sparse
