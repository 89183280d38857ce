"""Advice on how to train over a link, from measurements.

`RECIPES` lists what is worth a try, with the measured worths of steps: the candidates of `taugrad plan` and
`taugrad auto --link` come from it. `METHODS` are the methods of docs/choose.md, which `taugrad doctor`
prints; a test compares the page with them, and its figures with the results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import yaml

from taugrad.compressors.methods.sparse import SparseMethod
from taugrad.platform.spec.synchronization import RealSync, real

if TYPE_CHECKING:
    from taugrad.platform.spec import RunSpec

PAGE = "docs/choose.md"
LONG_S = 0.005
"""Seconds, one way. From here on, the delay of a message matters as well as its bytes."""
MANY = 8
"""Workers. From here on, messages from each worker to all others are most of the bytes."""
ADAPTIVE = ("adam", "adamw", "lamb", "muon")
"""Kinds of optimizers that divide by the size of past gradients; Muon does for what is no matrix."""
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
        fields: dict[str, Any] = {"pattern": pattern} if pattern != "allgather" else {}
        if not self.every:
            return {"mode": "gradients", **fields}
        fields |= {"mode": "weights", "every": self.every}
        if self.unsent:
            fields["unsent"] = float(f"{1 / workers:.6g}")
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
    """The method for a case, as docs/choose.md has it.

    Attributes:
        when: the case, in words.
        because: the reason, without figures.
        fields: of a spec.
        notes: remarks on them, by the field's name.
    """

    when: str
    because: str
    fields: Mapping[str, Any]
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def use(self) -> list[str]:
        """Lines of a spec."""
        return spec_lines(self.fields, self.notes)


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
        "The slowest link is faster than 1 Gbit/s",
        "compression itself takes time; taugrad plan predicts whether it pays for your model",
        {"sync": {"mode": "gradients"}, "compressor": "none"},
    ),
    Advice(
        "The optimizer is Adam, AdamW, LAMB or Muon",
        "these optimizers divide by the size of past gradients (Muon for embeddings, the last layer and "
        "vectors), which a threshold on gradients distorts; so let each worker step with its own gradients, "
        "and compress what its weights change",
        _LOCAL,
        {**_UNSENT, "training": f"{LR:g}, your lr, x sqrt(workers.count)"},
    ),
    Advice(
        "The optimizer is SGD, with or without momentum, or LARS",
        "local steps send least for what they learn: bytes and delays count once in 4 steps. The "
        "workers' weights differ meanwhile, so check what your training reaches; lr and momentum stay",
        {name: value for name, value in _LOCAL.items() if name != "training"},
        _UNSENT,
    ),
)
"""The methods, in order: the first case that applies is the one."""


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
