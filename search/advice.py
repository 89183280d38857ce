"""Advice on how to train over a link, from measurements.

`RECIPES` lists the ways to exchange that are worth a try, with the measured worths of their steps. The boxes
of docs/choose.md, the rows and the headline of `taugrad plan`, the shortlist of `taugrad auto --link`, and
the warning of `taugrad train` come from here, filled in for a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import yaml

from taugrad.compressors.method.sparse import SparseMethod
from taugrad.platform.synchronization.config import RealSync, real

if TYPE_CHECKING:
    from taugrad.platform.spec import RunSpec

PAGE = "docs/choose.md"
LONG_S = 0.005
"""Seconds, one way. From here on, the delay of a message matters as well as its bytes."""
MANY = 8
"""Workers. From here on, messages from each worker to all others are most of the bytes."""
ADAPTIVE = ("adam", "adamw", "lamb", "muon")
"""Kinds of optimizers that divide by the size of past gradients; Muon does for what is no matrix."""
PER_STEP_LINE = "strom(density(0.01), momentum=0.9) | golomb_rice"
CLEARLY = 1.25
"""How much faster to a target than the usual way another must be to be advised: worths were measured with
other models."""
_WIDTH = 100

Family = Literal["exact", "linear", "strom", "wgt", "local", "diloco", "sparseloco"]
Pattern = Literal["allgather", "hierarchical", "sharded"]


@dataclass(frozen=True)
class Recipe:
    """An entry of the list of recommendations: a method, and how often it exchanges.

    Attributes:
        family: of ways that differ in degree only.
        line: of the compressor; momentum is the optimizer's.
        worth: steps of the training without compression that one step is worth, both at their best learning
            rates: the ratio of the steps to the target, as docs/results/*network_target* have it. Estimates
            between measured ones: `linear` in 8 bits, `strom` of 10% in each step, 10% every 10 steps, and
            DiLoCo in 4 bits.
        every: local steps from one exchange to the next; 0: the gradients of each step are exchanged.
        degree: how much it departs from exchanging everything in each step, in each respect in which its
            family differs; less loses less.
        unsent: whether workers keep their part of what is not sent yet in their own weights.
    """

    family: Family
    line: str
    worth: float
    every: int = 0
    degree: tuple[float, ...] = ()
    unsent: bool = False

    @property
    def is_per_step_sparse(self) -> bool:
        """Whether it has a threshold on the gradients of each step, which misleads adaptive optimizers."""
        return self.family in ("strom", "wgt")

    def sync(self, workers: int, pattern: Pattern = "allgather") -> dict[str, Any]:
        """The fields of `sync`."""
        if not self.every:
            return {"mode": "sharded"} if pattern == "sharded" else {"mode": "allgather"}
        fields: dict[str, Any] = {"mode": "weights", "every": self.every}
        if self.unsent:
            fields["unsent"] = float(f"{1 / workers:.6g}")
        if pattern != "allgather":
            fields["pattern"] = pattern
        if self.family == "diloco":  # arXiv 2311.08105
            fields["outer"] = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
        return fields


def _local(every: int, density: float, worth: float) -> Recipe:
    line = f"strom(density({density:g}, every=1)) | golomb_rice"
    return Recipe("local", line, worth, every, (every, 1 / density), unsent=True)


def _sparseloco(every: int, keep: int, worth: float) -> Recipe:
    line = f"chunked_topk(keep={keep}, decay=0.95) | quantile(bits=2) | chunked"
    return Recipe("sparseloco", line, worth, every, (every, 1 / keep))


USUAL = _local(4, 0.1, 0.91)
"""The default."""
RECIPES = (
    Recipe("exact", "none", 1.0),
    Recipe("exact", "fp16", 1.0),
    Recipe("linear", "linear(bits=8)", 0.97, degree=(4,)),
    Recipe("linear", "linear(bits=4)", 0.93, degree=(8,)),
    Recipe("strom", "strom(density(0.1)) | golomb_rice", 0.7),
    Recipe("strom", "strom(density(0.01)) | golomb_rice", 0.57),
    Recipe("strom", "strom(density(0.001)) | golomb_rice", 0.34),
    Recipe("wgt", "wgt(density(0.01)) | golomb_rice", 0.71),
    _local(2, 0.2, 0.82),
    USUAL,
    _local(4, 0.02, 0.91),
    _local(10, 0.1, 0.8),
    _local(10, 0.02, 0.57),
    Recipe("diloco", "linear(bits=8)", 0.68, 10, (10, 4)),
    Recipe("diloco", "linear(bits=8)", 0.56, 30, (30, 4)),
    Recipe("diloco", "linear(bits=4)", 0.5, 30, (30, 8)),
    _sparseloco(4, 128, 0.93),
    _sparseloco(4, 64, 0.85),
    _sparseloco(10, 64, 0.52),
)
_UNKNOWN_SPARSE, _UNKNOWN_DENSE = 0.57, 0.9
_UNKNOWN_LOCAL = ((2, 0.82), (4, 0.84), (10, 0.57), (30, 0.5))
"""Worths of ways that are not in the list, by the steps between two exchanges."""


def worth_like(method: object, sync: RealSync, optimizer: str) -> float:
    """The worth (see `Recipe`) of a way that is not in the list; 0 if it is never advised."""
    if sync.is_local:
        return next((worth for every, worth in _UNKNOWN_LOCAL if 0 < sync.local_steps <= every), 0.4)
    if isinstance(method, SparseMethod):
        return 0.0 if optimizer in ADAPTIVE else _UNKNOWN_SPARSE
    return _UNKNOWN_DENSE


def local_rate(lr: float, workers: float) -> float:
    """The learning rate of an adaptive optimizer's local steps, from that of steps with the mean gradient.

    A worker's gradients are noisier than their mean: steps are smaller by the root of the number of workers.
    """
    return float(f"{lr * workers**0.5:.6g}")


def pattern_of(workers: int, delay: float, sites: int = 1) -> Pattern:
    """The pattern after local steps, by numbers of workers and sites, and the delay in seconds."""
    if sites > 1:
        return "hierarchical"
    return "sharded" if workers >= MANY and delay < LONG_S else "allgather"


@dataclass(frozen=True)
class Advice:
    """The advice for a case.

    Attributes:
        name: of the case; `docs/make_choose.py` uses it, too.
        when: the case, in words.
        because: the reason, without figures.
        fields: of a spec. Fields of a later case contain those of an earlier one.
        notes: remarks on them, by the field's name.
        command: instead of fields.
    """

    name: str
    when: str
    because: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def use(self) -> tuple[str, ...]:
        """Lines of a spec, or the command."""
        return (self.command,) if self.command else tuple(spec_lines(self.fields, self.notes))


def spec_lines(fields: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> list[str]:
    """Fields of a spec as lines, with remarks."""
    lines = []
    for name, value in fields.items():
        text = f'"{value}"' if isinstance(value, str) and name == "compressor" and " " in value else value
        if not isinstance(value, str):
            text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
        line = f"{name}: {text}"
        note = (notes or {}).get(name)
        lines.append(f"{line:51} # {note}" if note else line)
    return lines


def local_steps(optimizer: str, lr: float, workers: int) -> dict[str, Any]:
    """The fields of a spec for local steps with an adaptive optimizer, from its present `lr`."""
    trained = {"optimizer": {"kind": optimizer, "lr": local_rate(lr, workers)}}
    return {"sync": USUAL.sync(workers), "compressor": USUAL.line, "training": trained}


WORKERS, LR = 4, 1e-3
"""The run of docs/choose.md and `taugrad doctor`."""
_UNSENT = {"sync": "unsent: 1 / workers.count"}
_LOCAL = local_steps("adamw", LR, WORKERS)
METHODS = (
    Advice(
        "fast link",
        "The slowest link is faster than 1 Gbit/s",
        "compression itself takes time; taugrad plan predicts whether it pays for your model",
        {"sync": {"mode": "allgather"}, "compressor": "none"},
    ),
    Advice(
        "adaptive optimizer",
        "The optimizer is Adam, AdamW, LAMB or Muon",
        "these optimizers divide by the size of past gradients (Muon for embeddings, the last layer and "
        "vectors), which a threshold on gradients distorts; so let each worker step with its own gradients, "
        "and compress what its weights change",
        _LOCAL,
        {**_UNSENT, "training": f"{LR:g}, your lr, x sqrt(workers.count)"},
    ),
    Advice(
        "sgd",
        "The optimizer is SGD, with or without momentum, or LARS",
        "local steps send least for what they learn: bytes and delays count once in 4 steps. The "
        "workers' weights differ meanwhile, so check what your training reaches; lr and momentum stay",
        {name: value for name, value in _LOCAL.items() if name != "training"},
        _UNSENT,
    ),
)
"""The methods, in order: the first case that applies is the one."""
BESIDES = (
    Advice(
        "sites",
        "Workers are at several sites, connected by a slow link",
        "a message then crosses the slow link once for each other site, not once for each worker there",
        {"sync": USUAL.sync(WORKERS, "hierarchical")},
    ),
    Advice(
        "many workers",
        "There are 8 workers or more at one site, and the delay is less than 5 ms",
        "what a worker receives hardly grows with the number of workers; in allgather it grows with each "
        "worker. But an exchange waits for two delays, one after the other, and in allgather for one",
        {"sync": USUAL.sync(WORKERS, "sharded")},
    ),
    Advice(
        "long link",
        "Workers are at one site, and the link's delay is 5 ms one way or more",
        "messages from all to all, which are the default, wait for one delay in an exchange, however "
        "many workers there are; PowerSGD, all-reduces and sharded exchanges wait for several",
        {"sync": USUAL.sync(WORKERS)},
    ),
    Advice(
        "fp16",
        "You train in fp16",
        "the exchange stays in float32, and a step whose gradient overflows is skipped",
        {"training": {"precision": "fp16"}},
        {"training": "with any compressor except powersgd"},
    ),
)
"""Additional cases. At most one of those about patterns applies."""
_BY_COMPRESSOR = {"training": "the compressor applies the momentum"}
_SPARSE = {"compressor": PER_STEP_LINE, "training": {"optimizer": {"kind": "sgd", "momentum": 0.0}}}
WORTH_KNOWING = (
    Advice(
        "every step",
        "Every step must be exchanged, and the optimizer is SGD or LARS",
        "sending 1% of the elements, as signs with a common threshold, had the fastest steps of what "
        "exchanges gradients on every link that was measured. From 8 workers on, with a delay of less "
        "than 5 ms, use mode: sharded instead",
        {"sync": {"mode": "allgather"}, **_SPARSE},
        _BY_COMPRESSOR,
    ),
    Advice(
        "unknown threshold",
        "You do not know which threshold keeps your accuracy",
        "it trains without compression, then with two densities, or with local steps if the optimizer is "
        "adaptive, until one is within the tolerance; if none is, it says how far off the nearest is",
        command="taugrad auto SPEC --tolerance 2",
    ),
    Advice(
        "target",
        "You want to reach a loss in the least time over a link",
        "it weighs the seconds per step against what a step learns, by short probes of your own training",
        command="taugrad auto SPEC --link 50mbit,20ms --target loss=1.9",
    ),
    Advice(
        "uneven steps",
        "Workers take turns at being slow, and the optimizer is SGD or LARS",
        "nobody waits for the slowest worker of a step; if it is always the same one, nothing is gained",
        {"sync": {"mode": "async"}, **_SPARSE},
        _BY_COMPRESSOR,
    ),
    Advice(
        "fully connected",
        "Most parameters are in fully connected layers (AlexNet, VGG)",
        "these layers are split over the workers, which exchange activations instead of gradients",
        {"sync": {"mode": "hybrid"}},
    ),
    Advice(
        "nearly the same numbers",
        "The training should change as little as possible",
        "every element is sent in every step, in a quarter of the bytes; in your own DDP script on GPUs with "
        "NCCL, messages stay on the GPU (plan them as sharded)",
        {"compressor": "linear(bits=8)"},
    ),
)
"""Cases that do not follow from a spec and a link."""


def lines_of(advice: Sequence[Advice]) -> list[str]:
    """Advice as lines for a terminal."""
    lines = []
    for case in advice:
        lines += wrap(f"{case.when}: {case.because}.", _WIDTH)
        lines += [f"    {line}" for line in case.use]
    return lines


def is_per_step_sparse(spec: "RunSpec") -> bool:
    """Whether a method that holds elements back synchronizes the gradients of each step."""
    return isinstance(spec.compressor, SparseMethod) and not real(spec.sync).is_local


def warning_of(specs: Sequence[tuple[str, "RunSpec"]]) -> str:
    """A warning for the first spec with an adaptive optimizer and per-step thresholds; empty without one.

    Specs come with the names of their files; the warning has the fields to set.
    """
    for source, spec in specs:
        optimizer, sync = spec.training.optimizer, spec.sync
        if optimizer.kind not in ADAPTIVE or not is_per_step_sparse(spec):
            continue
        fields = local_steps(optimizer.kind, optimizer.lr, spec.workers.count)
        if sync.mode == "simulated":
            fields["sync"] = {"mode": "simulated", "of": fields["sync"]}
        mode = f"{real(sync).mode}, simulated" if sync.mode == "simulated" else sync.mode
        return "\n".join(
            (
                f"warning: {source}: training.optimizer.kind = {optimizer.kind} with compressor.kind = "
                f"{spec.compressor.kind} in sync.mode = {mode}: elements that are held back mislead "
                f"{optimizer.kind}, which often learns far less then (docs/adamw.md). Set instead:",
                *(f"    {line}" for line in spec_lines(fields)),
            )
        )
    return ""
