"""Estimates how many bytes a run with a threshold sends at a density, before it is trained, and the reverse.

The estimate assumes that layers send the share that a policy aims at, and that positions are independent. If
that share is less than one element of a layer, the estimate is too low.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.methods.threshold import ThresholdedMethod
from taugrad.compressors.thresholds.allocate import bits_per_element
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import RealSync, real
from taugrad.platform.spec.training import ConstantBatch

SPARSEST, DENSEST = 1e-5, 0.1
"""The densities that a budget may lead to. Above the last one, a sign and tau represent values badly."""

_HEADER_BYTES, _TAU_BYTES = 28.0, 4.0
_TABLE_BYTES = 8.0
"""Bytes in a message that is not empty: length of Golomb-Rice blocks, one block's entry, its last bits."""
SWING = 1.3
"""Bytes of positions and values over the estimate, as shares vary around the target. With `allocate`, it was
0.6 to 1.3 in short trainings of LeNet and an mlp, and 1.9 at 0.3% of the mlp, which is 14 elements."""
_BUCKET_BYTES = (2**20, 25 * 2**20)
"""DDP's buckets: the first, and each further one."""


class CannotEstimate(ValueError):
    """The bytes of a spec do not follow from a density; the message names the field."""


@dataclass(frozen=True)
class Cost:
    """The bytes of a run as a function of the density.

    Attributes:
        layers: elements of each parameter that is compressed.
        whole: elements that are sent as float32 in each step.
        buckets: number of buckets of a step's gradient.
        taus: whether messages say the tau of each parameter.
        value_bits: bits of an element sent, in addition to its position.
        sendings: messages of all workers in all steps; workers x steps if none are forwarded.
        swing: bytes of messages without headers, over the estimate.
    """

    layers: tuple[int, ...]
    whole: int
    buckets: int
    taus: bool
    value_bits: float
    sendings: int
    swing: float = SWING

    @property
    def elements(self) -> int:
        """Parameters of the model."""
        return sum(self.layers) + self.whole

    def wire_bytes(self, density: float) -> float:
        """Bytes of all workers over the run, increasing with the density; at 0 they are headers."""
        sizes = np.array(self.layers, np.float64)
        sent = np.full(sizes.shape, density)
        positions_and_values = float((sizes * bits_per_element(sent, self.value_bits)).sum()) / 8
        expected = np.full(self.buckets, sizes.sum() * density)
        # An empty message has no table; the number of elements in one has a Poisson distribution.
        tables = _TABLE_BYTES * float(-np.expm1(-expected).sum())
        a_step = self._headers() + self.swing * (positions_and_values * (density > 0) + tables)
        return self.sendings * a_step

    def _headers(self) -> float:
        whole = _HEADER_BYTES * self.buckets + 4.0 * self.whole if self.whole else 0.0
        taus = _TAU_BYTES * len(self.layers) if self.taus else 0.0
        return self.buckets * _HEADER_BYTES + taus + whole

    def density(self, wire_bytes: float) -> float:
        """The largest density for a budget, SPARSEST to DENSEST; raises ValueError if SPARSEST takes more."""
        if self.wire_bytes(SPARSEST) > wire_bytes:
            raise ValueError(
                f"{wire_bytes / 1e6:.6g} MB: headers alone take {self.wire_bytes(0) / 1e6:.4g} MB, "
                f"{self.least_mb():.4g} is the least possible"
            )
        if self.wire_bytes(DENSEST) <= wire_bytes:
            return DENSEST
        low, high = math.log(SPARSEST), math.log(DENSEST)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.wire_bytes(math.exp(middle)) <= wire_bytes else (low, middle)
        return math.exp(low)

    def least_mb(self) -> float:
        """The smallest budget, MB, rounded up to four digits."""
        exact = self.wire_bytes(SPARSEST) / 1e6
        unit = 10.0 ** (math.floor(math.log10(exact)) - 3)
        return math.ceil(exact / unit) * unit


def cost_of(spec: RunSpec) -> Cost:
    """The cost of a run with a thresholded method; builds its data and model.

    Raises:
        CannotEstimate: the run's bytes do not follow from a density.
    """
    method = spec.compressor
    if not isinstance(method, ThresholdedMethod):
        raise CannotEstimate(f"compressor.kind = {method.kind}: has no threshold")
    sync = _estimable(spec)
    from taugrad.platform.data import load  # noqa: PLC0415 - takes seconds
    from taugrad.platform.data.batch_plan import BatchPlan  # noqa: PLC0415
    from taugrad.platform.models.building import build  # noqa: PLC0415

    data = load(spec.data)
    model = build(spec.model, data.shape)
    sizes = {
        name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    layers, whole = _parameters(sizes, method)
    first, further = _BUCKET_BYTES
    sites, workers = sync.site_ranks, spec.workers.count
    sendings = workers if sites is None else Sites.of(sites, workers).sendings
    return Cost(
        layers=layers,
        whole=whole,
        buckets=1 + max(0, math.ceil((4 * (sum(layers) + whole) - first) / further)),
        taus=method.kind != "wgt",
        value_bits=method.value_bits,
        sendings=sendings * BatchPlan(spec.training, len(data.train)).iterations,
    )


def _estimable(spec: RunSpec) -> RealSync:
    """The mode; raises CannotEstimate if a density does not determine the run's bytes."""
    sync, codec = real(spec.sync), spec.compressor.position_codec
    if not sync.gathers_buckets:
        where = "sync.of" if sync is not spec.sync else "sync"
        field = "pattern" if sync.exchanges == "buckets" else "mode"
        raise CannotEstimate(
            f"{where}.{field} = {getattr(sync, field)}: bytes can be estimated for the pattern allgather of "
            "the mode gradients only"
        )
    if sync.pattern_name == "hierarchical" and sync.site_ranks is None:
        raise CannotEstimate(
            "sync.pattern = hierarchical: bytes can be estimated only if sync.sites is given"
        )
    if (island := getattr(sync, "island", None)) is not None:
        raise CannotEstimate(f"sync.island = {island}: bytes can be estimated without islands only")
    if codec not in ("auto", "golomb_rice"):
        raise CannotEstimate(
            f"compressor.codec = {codec}: bytes can be estimated for auto and golomb_rice only"
        )
    if not isinstance(spec.training.batch_growth, ConstantBatch):
        kind = spec.training.batch_growth.kind
        raise CannotEstimate(f"training.batch_growth.kind = {kind}: bytes can be estimated for constant only")
    return sync


def _parameters(sizes: Mapping[str, int], method: ThresholdedMethod) -> tuple[tuple[int, ...], int]:
    """Elements of each parameter that is compressed, and of all others together."""
    from taugrad.compressors.bucket.compressor import is_exempt  # noqa: PLC0415 - takes seconds

    layers = tuple(size for name, size in sizes.items() if not is_exempt(method.exempt, name, size))
    return layers, sum(sizes.values()) - sum(layers)
