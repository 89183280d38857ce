"""What network/network_target.py trains: a GPT in two sizes, and who competes."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from taugrad.platform.spec import RunSpec

sys.path.append(str(Path(__file__).parent))  # kept trainings are known by specs with demo:gpt
HOSTS = 4
NEVER = 10**6


Point = tuple[float, ...]
"""A value for each of a contender's knobs, in their order; the first is `every`, the second `rate`."""


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    line: str
    """The compressor."""
    sync: Mapping[str, Any] = field(default_factory=lambda: {"mode": "gradients"})
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """In place of the workload's; its learning rate is the workload's own if it has none."""
    factory: str = ""
    """Builds the workload's model, with the fields of its config, for this way of training."""
    rate: float = 1.0
    """The learning rate, as a multiple of the workload's own."""
    name: str = ""
    processes: bool = False
    """Whether it takes a process for each worker to train, where it cannot be simulated."""
    half: str = ""
    """fp16: over links it goes by torch's hook, which all-reduces in 16 bits. A simulation of the compressor
    of that name tells its steps."""

    @property
    def every(self) -> int:
        """Steps from one exchange to the next."""
        return int(self.sync.get("every", 1))


@dataclass(frozen=True)
class Contender:
    """A kind of exchange, with the values that its search may take."""

    name: str
    label: str
    """The label of a setting; what it names tells settings apart that are measured side by side."""
    knobs: Mapping[str, Sequence[float]]
    line: str
    """The compressor, with the names of knobs; `density` is `percent` as a share."""
    starts: Sequence[Point]
    """What is tried first: each number of local steps, and what was known before there was this search."""
    trainings: int
    """How many settings may be tried."""
    local: bool = False
    """Whether it has local steps."""
    whole: str = ""
    """The compressor where values have 32 bits."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    late: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of fragments that arrive late."""
    factory: str = ""
    processes: bool = False
    half: str = ""
    ours: bool = False

    def setting(self, point: Point) -> Setting:
        """What a point of the search means."""
        values = dict(zip(self.knobs, point, strict=True))
        line = self.line.format(**values, density=values.get("percent", 0.0) / 100)
        if 32 in (values.get("bits"), values.get("value_bits")):
            line = self.whole
        sync = self._local_steps(values) if self.local else {"mode": "gradients"}
        name = self.label.format(**values)
        ways = {"factory": self.factory, "processes": self.processes, "half": self.half}
        return Setting(line, sync, self.optimizer, rate=values["rate"], name=name, **ways)  # type: ignore[arg-type]

    def _local_steps(self, values: Mapping[str, float]) -> dict[str, Any]:
        sync: dict[str, Any] = {"mode": "weights", "every": values["every"]}
        if "unsent" in values:
            sync["unsent"] = values["unsent"]
        if "outer" in values:
            momentum = values["momentum"]
            sync["outer"] = {"lr": values["outer"], "momentum": momentum, "nesterov": momentum > 0}
        if "delay" in values:
            sync["fragments"] = min(values["fragments"], values["every"])
            sync["delay_steps"] = min(values["delay"], values["every"] - 1)
        return sync | self.late

    def neighbours(self, point: Point) -> Iterator[Point]:
        """The next larger and the next smaller value of one knob: its own, then the rate, then `every`."""
        for place in (*range(2, len(point)), 1, 0):
            values = tuple(self.knobs.values())[place]
            at = values.index(point[place])
            for other in (*values[at + 1 : at + 2], *values[max(0, at - 1) : at]):
                yield (*point[:place], other, *point[place + 1 :])


RATES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
EVERY = (1, 2, 4, 10, 30)
TRAININGS = 15
"""Trainings for each contender that takes local steps."""


def _by_hook(name: str, label: str, line: str, half: str = "") -> Contender:
    return Contender(name, label, {"every": (1,), "rate": RATES}, line, ((1, 1.0),), 3, half=half)


MUON = {"kind": "muon", "betas": [0.9, 0.99], "weight_decay": 0.1}
SIGNS = {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.1}
DDP = _by_hook("DDP, float32", "DDP, float32", "none")
HALF = _by_hook("DDP, 16 bits", "DDP, fp16 hook", "fp16", "fp16")
POWER_SGD = Contender(
    *("PowerSGD", "PowerSGD, rank {rank}"),
    {"every": (1,), "rate": RATES, "rank": (2, 4, 8, 16)},
    "powersgd({rank})",
    ((1, 1.0, 4), (1, 0.5, 4), (1, 2.0, 4)),
    3,
    processes=True,
)
OUTER = {"every": EVERY, "rate": RATES, "outer": (0.5, 0.7, 1.0), "momentum": (0.0, 0.5, 0.8, 0.9)}
DILOCO = Contender(
    *("DiLoCo", "DiLoCo, every {every}, {bits} bits"),
    {**OUTER, "bits": (4, 8, 32)},
    "linear({bits})",
    (
        *((30, rate, 0.7, 0.9, 8) for rate in (0.25, 0.5, 1.0)),
        (30, 0.5, 0.7, 0.9, 32),
        *((10, rate, 0.7, 0.9, 8) for rate in (0.25, 0.5, 1.0)),
        *((every, 0.5, 0.7, 0.9, 8) for every in (4, 2, 1)),
    ),
    TRAININGS,
    local=True,
    whole="none",
)
"""arXiv 2311.08105, whose outer optimizer has 0.7 and 0.9."""
PULSELOCO = Contender(
    *("PULSELoCo", "PULSELoCo, every {every}, {value_bits} bits"),
    {**OUTER, "value_bits": (2, 4, 32)},
    "visible | quantile(bits={value_bits})",
    (
        *((30, rate, 0.7, 0.8, 2) for rate in (0.5, 1.0)),
        *((every, 0.5, 0.7, 0.8, 2) for every in (10, 60)),
        (30, 0.5, 0.7, 0.9, 32),
    ),
    TRAININGS,
    local=True,
    whole="visible",
)
"""arXiv 2602.03839, where values have 32 bits; fewer are tried, as for DiLoCo."""
SPARSELOCO = Contender(
    *("SparseLoCo", "SparseLoCo, every {every}"),
    {
        **{"every": EVERY, "rate": RATES, "unsent": (0.0, 0.25, 0.5)},
        **{"keep": (16, 32, 64, 128, 256), "decay": (0.9, 0.95, 0.99)},
    },
    "chunked_topk(keep={keep}, decay={decay}) | quantile(bits=2) | chunked",
    (
        (30, 1.0, 0.0, 64, 0.95),
        *((10, rate, 0.0, 64, 0.95) for rate in (1.0, 2.0)),
        *((every, 2.0, 0.0, 64, 0.95) for every in (4, 2, 1)),
    ),
    TRAININGS,
    local=True,
)
"""Its message has 64 of 4,096 elements, a decay of 0.95 and 2 bits as published."""
CODED = "SparseLoCo, coded"


def coded(setting: Setting) -> Setting:
    """SparseLoCo's message with positions that are entropy-coded; bit for bit the same training."""
    return replace(
        setting, line=setting.line.replace("| chunked", "| golomb_rice"), name=f"{setting.name}, coded"
    )


LINEAR = Contender(
    *("linear (ours)", "`linear`, {bits} bits"),
    {"every": (1,), "rate": RATES, "bits": (2, 3, 4, 8)},
    "linear({bits})",
    ((1, 1.0, 4), (1, 0.5, 4), (1, 2.0, 4)),
    3,
    ours=True,
)
STROM = Contender(
    *("strom (ours)", "`strom`, every {every}"),
    {"every": EVERY, "rate": RATES, "percent": (1, 2, 5, 10, 20), "unsent": (0.0, 0.25, 0.5)},
    "strom(density({density:g}, every=1)) | golomb_rice",
    (
        *((10, rate, 2, 0.25) for rate in (1.0, 2.0)),
        *((4, rate, 10, 0.25) for rate in (1.0, 2.0)),
        *((2, rate, 20, 0.25) for rate in (0.5, 1.0, 2.0)),
        (30, 1.0, 5, 0.25),
        (1, 1.0, 20, 0.25),
    ),
    TRAININGS,
    local=True,
    ours=True,
)
"""What docs/adamw.md recommends: local steps, whose sums meet a threshold."""
STROM_BY_MUON = replace(
    STROM, name="strom, Muon (ours)", label="`strom` with Muon, every {every}", optimizer=MUON
)
STROM_OUTER = Contender(
    *("strom, outer momentum (ours)", "`strom` with outer momentum {momentum}, every {every}"),
    {**STROM.knobs, "outer": (0.5, 0.7, 1.0), "momentum": (0.0, 0.3, 0.5, 0.8, 0.9)},
    STROM.line,
    (
        *((6, 2.0, 2, 0.25, 1.0, momentum) for momentum in (0.3, 0.5)),
        *((every, 1.0, percent, 0.25, 0.7, 0.8) for every, percent in ((6, 2), (10, 5))),
        (10, 2.0, 5, 0.25, 1.0, 0.5),
    ),
    TRAININGS,
    local=True,
    ours=True,
)
"""The first of three attempts to need fewer steps over slow links: DiLoCo's outer optimizer."""
STROM_DECAYING = Contender(
    *(
        "strom, residual's weight (ours)",
        "`strom`, {unsent:g} of the residual, decay {decay:g}, every {every}",
    ),
    {**STROM.knobs, "unsent": (0.0, 0.25, 0.5, 1.0), "decay": (0.9, 0.95, 0.99, 1.0)},
    "strom(density({density:g}, every=1), decay={decay}) | golomb_rice",
    (
        *((6, 2.0, 2, unsent, 1.0) for unsent in (0.0, 0.5, 1.0)),
        (6, 2.0, 2, 0.25, 0.95),
        (10, 2.0, 5, 0.5, 1.0),
    ),
    TRAININGS,
    local=True,
    ours=True,
)
"""The second: other parts of the residual in a worker's weights, and residuals that fade."""
TWO_BITS = Contender(
    *("wgt, 2 bits (ours)", "`wgt` in 2 bits, every {every}"),
    STROM.knobs,
    "wgt(density({density:g}, every=1)) | quantile(bits=2) | golomb_rice",
    (*((every, 2.0, percent, 0.25) for every, percent in ((4, 1), (4, 2), (6, 2), (6, 5), (10, 5))),),
    TRAININGS,
    local=True,
    ours=True,
)
"""The third: values in two bits in place of plus or minus tau."""
LATE = Contender(
    *("strom, late (ours)", "`strom`, every {every}, {fragments} fragments, {delay} late"),
    {**STROM.knobs, "every": EVERY[1:], "fragments": (1, 2, 4), "delay": (1, 2, 3, 5)},
    STROM.line,
    (
        *((4, 2.0, 10, 0.25, 1, delay) for delay in (1, 2, 3)),
        *((4, 2.0, 10, 0.25, fragments, 2) for fragments in (2, 4)),
        *((4, 2.0, percent, 0.25, 1, 3) for percent in (2, 5)),
        (10, 2.0, 10, 0.25, 2, 3),
    ),
    10,
    local=True,
    ours=True,
)
"""Fragments that arrive late (Streaming DiLoCo, arXiv 2501.18512); a worker keeps its steps meanwhile."""
STREAMING = Contender(
    *("Streaming DiLoCo", "Streaming DiLoCo, every {every}, {fragments} fragments, {delay} late"),
    {
        **{"every": EVERY, "rate": RATES, "outer": (0.4, 0.5, 0.7, 1.0)},
        **{"momentum": (0.0, 0.5, 0.8, 0.9), "fragments": (1, 2, 4), "delay": (1, 2, 5)},
    },
    "linear(4)",
    (
        *((30, rate, 0.7, 0.8, 4, 1) for rate in (0.5, 0.25, 1.0)),
        (30, 0.5, 0.4, 0.9, 4, 1),
        *((every, 0.5, 0.7, 0.8, 4, 1) for every in (10, 100)),
    ),
    TRAININGS,
    local=True,
    late={"blend": 0.5},
)
"""arXiv 2501.18512 at 4 bits: alpha is 0.5. `linear` and its residual stand for E3M0, parts of consecutive
layers for the strided ones."""
MULOCO = Contender(
    *("MuLoCo", "MuLoCo, every {every}, {bits} bits"),
    {**OUTER, "bits": (2, 4, 8)},
    "linear({bits})",
    (
        *((30, rate, 0.7, 0.8, 4) for rate in (1.0, 0.5, 2.0)),
        (30, 1.0, 0.7, 0.9, 2),
        *((every, 1.0, 0.7, 0.8, 4) for every in (10, 100)),
    ),
    TRAININGS,
    local=True,
    optimizer=MUON,
)
"""arXiv 2505.23725: DiLoCo with Muon, error feedback and few bits."""
DEMO = Contender(
    *("DeMo", "DeMo, {keep} of 4096"),
    {"every": (1,), "rate": RATES, "keep": (4, 8, 16, 32, 64), "decay": (0.9, 0.95, 0.99, 0.999)},
    "chunked_topk(keep={keep}, decay={decay}, quantize=None) | chunked",
    (*((1, rate, 32, 0.999) for rate in (0.5, 0.25, 1.0)), (1, 0.5, 8, 0.999), (1, 0.5, 32, 0.95)),
    TRAININGS,
    optimizer=SIGNS,
    factory="demo:gpt",
)
"""See `demo`. Positions are coded, values whole."""
ATTEMPTS = (STROM_OUTER, STROM_DECAYING, TWO_BITS)
CONTENDERS = (DDP, HALF, POWER_SGD, DILOCO, SPARSELOCO, LINEAR, STROM)


@dataclass(frozen=True)
class Workload:
    """A model, its data, and what a run has to reach."""

    name: str
    base: Mapping[str, Any]
    """Fields of the spec."""
    metric: str
    target: float
    ddp: int
    """The steps that DDP takes in float32."""
    contenders: Sequence[Contender] = CONTENDERS
    least_steps: int = 40
    """How many steps are timed, at least."""
    rounds: int = 20
    """With so many exchanges, fewer steps are enough."""
    seeds: int = 3
    """Seeds of the settings that are measured."""
    brief: bool = False
    """Whether only what is close to the fastest is trained with all seeds, and nothing is run whole."""
    codes_peer: bool = False
    """Whether SparseLoCo's message is also measured with positions that are entropy-coded."""
    times: int = 1
    """How often a step is measured over a link, where a setting is close to the fastest."""
    conditions: bool = False
    """Whether workers that are not alike are measured, too."""
    hosts: int = HOSTS

    @property
    def longest(self) -> int:
        """After so many steps a training ends."""
        return 2 * self.ddp

    def spec(self, setting: Setting, seed: int) -> RunSpec:
        """A training until the target, simulated where that can be."""
        sync = dict(setting.sync) if setting.processes else {"mode": "simulated", "of": dict(setting.sync)}
        return self._spec(setting, sync, seed, {"until": {self.metric: self.target}})

    def whole(self, setting: Setting, seed: int) -> RunSpec:
        """The same by real workers."""
        return self._spec(setting, dict(setting.sync), seed, {"until": {self.metric: self.target}})

    def steps(self, setting: Setting, iterations: int) -> RunSpec:
        """So many steps of real workers, with one evaluation, after them."""
        until = {"iterations": iterations, "evaluate_every": iterations}
        return self._spec(setting, dict(setting.sync), 0, until)

    def _spec(self, setting: Setting, sync: Mapping[str, Any], seed: int, more: Mapping[str, Any]) -> RunSpec:
        training = {**self.base["training"], **more}
        usual = training["optimizer"]
        optimizer = {"lr": usual["lr"], **(setting.optimizer or usual)}
        training["optimizer"] = {**optimizer, "lr": setting.rate * optimizer["lr"]}
        model = self.base["model"]
        if setting.factory:
            fields = {name: value for name, value in model.items() if name != "kind"}
            model = {"kind": "custom", "factory": setting.factory, "arguments": fields}
        return RunSpec.model_validate(
            {
                **self.base,
                "model": model,
                "training": training,
                "compressor": "none" if setting.half and sync["mode"] == "gradients" else setting.line,
                "sync": sync,
                "workers": {"count": self.hosts},
                "checkpoint": {"interval": NEVER},
                "seed": seed,
            }
        )


GPT = Workload(
    "GPT, 4 x 128",
    {
        "task": {"kind": "language_model"},
        "model": {"kind": "gpt", "layers": 4, "heads": 4, "width": 128},
        "data": {"kind": "text", "context": 64},
        "training": {
            "iterations": 3000,
            "evaluate_every": 25,
            "batch_per_worker": 3,
            "optimizer": {"kind": "adamw", "lr": 2e-3, "betas": [0.9, 0.99], "weight_decay": 0.1},
            "warmup": {"iterations": 50},
            "clip": {"norm": 1.0},
        },
    },
    *("loss", 2.2, 425),
)
SLOW_TRAININGS = 6
"""Trainings for each contender over slow links."""
_SLOW_KNOBS: Mapping[str, Sequence[float]] = {
    "every": (*EVERY[:3], 6, *EVERY[3:4], 20, *EVERY[4:], 60, 100),
    "percent": (0.2, 0.5, 1, 2, 5, 10, 20),
    "keep": (4, 8, 16, 32, 64, 128, 256),
    "bits": (2, 3, 4, 8),
}
_SLOW_STARTS: Mapping[str, Sequence[Point]] = {
    DILOCO.name: (
        *((30, rate, 0.7, 0.8, 4) for rate in (0.5, 1.0)),
        *((every, 0.5, 0.7, 0.8, 4) for every in (10, 60)),
        (30, 0.5, 0.7, 0.8, 8),
    ),
    SPARSELOCO.name: (
        *((every, 2.0, 0.0, 64, 0.95) for every in (4, 6, 10)),
        (4, 2.0, 0.0, 128, 0.95),
        (30, 1.0, 0.0, 64, 0.95),
    ),
    STROM_BY_MUON.name: (
        *((10, rate, 5, 0.25) for rate in (1.0, 2.0)),
        *((4, 1.0, 2, 0.25), (30, 1.0, 10, 0.25), (10, 1.0, 2, 0.25)),
    ),
    STROM.name: (*((every, 2.0, 2, 0.25) for every in (4, 6, 10)), *((4, 2.0, 1, 0.25), (30, 1.0, 5, 0.25))),
}
"""What was the best over faster links, and other numbers of local steps."""


def _over_slow_links(contender: Contender) -> Contender:
    """The same with values for slow links; where it has local steps, with up to 100 of them."""
    knobs = {name: _SLOW_KNOBS.get(name, values) for name, values in contender.knobs.items()}
    if contender.knobs["every"] == (1,):
        knobs["every"] = (1,)
    starts = _SLOW_STARTS.get(contender.name, contender.starts)
    return replace(contender, knobs=knobs, starts=starts, trainings=SLOW_TRAININGS)


SLOW = replace(
    GPT,
    base={**GPT.base, "data": {**GPT.base["data"], "test_examples": 250}},
    contenders=tuple(
        map(
            _over_slow_links,
            (
                *(HALF, DILOCO, PULSELOCO, STREAMING, MULOCO, DEMO, SPARSELOCO),
                *(STROM_BY_MUON, STROM, *ATTEMPTS),
            ),
        )
    ),
    least_steps=20,
    rounds=8,
    codes_peer=True,
    times=2,
    conditions=True,
)
MANY = replace(
    SLOW, name=f"{SLOW.name}, 16 workers", ddp=200, contenders=(), conditions=False, hosts=16, brief=True
)
"""Its contenders begin with the best of `SLOW`; the attempts do not take part."""
WORKLOADS = {
    "gpt": GPT,
    "late": replace(GPT, contenders=(HALF, DILOCO, SPARSELOCO, STROM, LATE)),
    "slow": SLOW,
    "many": MANY,
}
"""By name on the command line."""
