"""The ways to train that a plan compares."""

from collections.abc import Sequence
from dataclasses import dataclass

from taugrad.compressors.config import CompressedMethod, Method, NoCompression, read_config
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import AllGatherSync, RealSync, WeightsSync, real
from taugrad.platform.synchronization.refusals import check_sync

from .calibrated import HALF

METHODS = (
    "powersgd(rank=4)",
    "linear(bits=8)",
    "strom(density(0.01)) | golomb_rice",
    "strom(density(0.001)) | golomb_rice",
    "wgt(density(0.01)) | golomb_rice",
    "wgt(density(0.001)) | golomb_rice",
)
"""Methods for an exchange in each step, unless the user names others."""
LOCAL_STEPS = (8, 32, 128)
_LOCAL_METHODS = ("none", "strom(density(0.01)) | golomb_rice")


@dataclass(frozen=True)
class Candidate:
    """A way to train: a method, and a mode of synchronization.

    Attributes:
        method: the compressor's line, or `HALF`.
        sync: the mode.
    """

    method: str
    sync: RealSync

    @property
    def compresses(self) -> bool:
        """Whether it compresses: anything but an exchange of 32 or 16 bits per gradient in each step."""
        return self.each_step and self.method not in ("none", HALF)

    @property
    def each_step(self) -> bool:
        """Whether workers exchange in each step, like DDP. Otherwise they take local steps in between."""
        return not isinstance(self.sync, WeightsSync)

    @property
    def mode(self) -> str:
        """The mode in words."""
        sync = self.sync
        if isinstance(sync, WeightsSync):
            when = f"{sync.every} steps" if sync.every else "epoch"
            return f"weights every {when}, {sync.pattern}"
        if isinstance(sync, AllGatherSync) and sync.exchange == "hierarchical":
            return sync.exchange
        return "all-reduce" if self.method in ("none", HALF) and sync.mode == "allgather" else sync.mode

    def __str__(self) -> str:
        return self.method if self.mode in ("allgather", "all-reduce") else f"{self.method} ({self.mode})"


def candidates_of(spec: RunSpec, methods: Sequence[str] = (), *, sites: bool = False) -> list[Candidate]:
    """The spec's own way, all-reduce in float32 and 16 bits, and others, without duplicates.

    Args:
        spec: the run to plan for.
        methods: lines of compressors to compare, instead of the usual ones and local steps.
        sites: whether workers are at several sites, so that messages may go to each site once.

    Raises:
        ValueError: a line is not a compressor.
    """
    exchange = AllGatherSync()
    own = [Candidate(str(spec.compressor), real(spec.sync))]
    own += [Candidate("none", exchange), Candidate(HALF, exchange)]
    if methods:
        own += [Candidate(str(read_config(line)), exchange) for line in methods]
    else:
        own += [Candidate(str(read_config(line)), exchange) for line in METHODS]
        for every in LOCAL_STEPS:
            for line in _LOCAL_METHODS:
                method = read_config(line)
                dense = isinstance(method, NoCompression)
                sync = WeightsSync(every=every, pattern="ring" if dense else "allgather")
                own.append(Candidate(str(method), sync))
    if sites:
        once = AllGatherSync(exchange="hierarchical")
        own += [
            Candidate(each.method, once)
            for each in own
            if each.sync == exchange and isinstance(_read(each.method), CompressedMethod)
        ]
    return list({(each.method, each.sync.model_dump_json()): each for each in own}.values())


def _read(method: str) -> Method | None:
    return None if method == HALF else read_config(method)


def measured_methods(candidates: Sequence[Candidate]) -> list[str]:
    """The lines of compressors that a calibration must contain."""
    return sorted({each.method for each in candidates if each.method != HALF})


def check_candidates(candidates: Sequence[Candidate]) -> None:
    """Refuses a method that cannot work in its mode, with a ValueError."""
    for each in candidates:
        if each.method != HALF:
            method: Method = read_config(each.method)
            check_sync(each.sync, method, 0.0)
