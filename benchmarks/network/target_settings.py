"""What network/network_target.py trains: a GPT in two sizes, and who competes."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

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
    """A kind of exchange, with the values that its search may take; contenders.yaml has all of them."""

    name: str
    label: str
    """The label of a setting; what it names tells settings apart that are measured side by side."""
    line: str
    """The compressor, with the names of knobs; `density` is `percent` as a share."""
    knobs: Mapping[str, Sequence[float]]
    starts: Sequence[Point]
    """What is tried first."""
    trainings: int
    """How many settings may be tried."""
    look: tuple[str, str] = ("#000000", "o")
    """The color and the marker in the picture."""
    slow_starts: Sequence[Point] = ()
    whole: str = ""
    """The compressor where values have 32 bits."""
    local: bool = False
    """Whether it has local steps."""
    late: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of fragments that arrive late."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    factory: str = ""
    processes: bool = False
    half: str = ""
    ours: bool = False

    def __post_init__(self) -> None:
        for name in ("starts", "slow_starts"):  # of lists, as YAML has them
            object.__setattr__(self, name, [tuple(point) for point in getattr(self, name)])

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

    def has(self, name: str) -> bool:
        """Whether a setting of this name is one of its."""
        return bool(re.fullmatch(re.sub(r"\\{.*?\\}", r"[\\d.]+", re.escape(self.label)), name))

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


_TREE = yaml.safe_load(Path(__file__).with_name("contenders.yaml").read_text(encoding="utf-8"))
CONTENDERS = {name: Contender(name, **fields) for name, fields in _TREE["contenders"].items()}
DDP, HALF, POWER_SGD = (CONTENDERS[name] for name in ("DDP, float32", "DDP, 16 bits", "PowerSGD"))
DILOCO, PULSELOCO, SPARSELOCO = (CONTENDERS[name] for name in ("DiLoCo", "PULSELoCo", "SparseLoCo"))
LINEAR, STROM, LATE = (CONTENDERS[f"{name} (ours)"] for name in ("linear", "strom", "strom, late"))
ATTEMPTS = [
    CONTENDERS[f"{name} (ours)"]
    for name in ("strom, outer momentum", "strom, residual's weight", "wgt, 2 bits")
]
CODED = "SparseLoCo, coded"


def coded(setting: Setting) -> Setting:
    """SparseLoCo's message with positions that are entropy-coded; bit for bit the same training."""
    return replace(
        setting, line=setting.line.replace("| chunked", "| golomb_rice"), name=f"{setting.name}, coded"
    )


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
    contenders: Sequence[Contender] = (DDP, HALF, POWER_SGD, DILOCO, SPARSELOCO, LINEAR, STROM)
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


def _over_slow_links(contender: Contender) -> Contender:
    """The same with values for slow links; where it has local steps, with up to 100 of them."""
    knobs = {name: _TREE["slow_knobs"].get(name, values) for name, values in contender.knobs.items()}
    if not contender.local:
        knobs["every"] = [1]
    starts = contender.slow_starts or contender.starts
    return replace(contender, knobs=knobs, starts=starts, trainings=SLOW_TRAININGS)


SLOW = replace(
    GPT,
    base={**GPT.base, "data": {**GPT.base["data"], "test_examples": 250}},
    contenders=[
        _over_slow_links(contender)
        for contender in (
            *(
                HALF,
                DILOCO,
                PULSELOCO,
                CONTENDERS["Streaming DiLoCo"],
                CONTENDERS["MuLoCo"],
                CONTENDERS["DeMo"],
            ),
            *(SPARSELOCO, CONTENDERS["strom, Muon (ours)"], STROM, *ATTEMPTS),
        )
    ],
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
