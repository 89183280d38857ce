"""What benchmarks/network_target.py trains: three workloads, and the ways in which people and we exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.nn.functional import avg_pool2d, pad

from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.data.config import Mnist5k
from taugrad.platform.spec import RunSpec

HOSTS = 4
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
"""DiLoCo's (arXiv 2311.08105)."""
NEVER = 10**6


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    name: str
    line: str
    """The compressor."""
    sync: Mapping[str, Any] = field(default_factory=lambda: {"mode": "allgather"})
    training: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the optimizer that differ; the search of rates begins here, and steps are timed so."""
    rate: float | None = None
    """The learning rate that the search found best."""
    processes: bool = False
    """Whether it takes a process for each worker to train, where it cannot be simulated."""
    ours: bool = False
    half: str = ""
    """fp16 or bf16: over links it goes by torch's hook, which all-reduces in 16 bits. A simulation of the
    compressor of that name tells its steps."""

    @property
    def every(self) -> int:
        """Steps from one exchange to the next."""
        return int(self.sync.get("every", 1))


@dataclass(frozen=True)
class Workload:
    """A model, its data, and what a run has to reach."""

    name: str
    base: Mapping[str, Any]
    """Fields of the spec; `training.iterations` is how long a run may try."""
    metric: str
    target: float
    settings: Sequence[Setting]
    least_steps: int = 100
    """How many steps are timed, at least."""
    hosts: int = HOSTS

    def rate(self, setting: Setting) -> float:
        """The learning rate at which the search begins."""
        return float({**self.base["training"]["optimizer"], **setting.training}["lr"])

    def spec(self, setting: Setting, seed: int) -> RunSpec:
        """A training until the target, simulated where that can be."""
        sync = dict(setting.sync) if setting.processes else {"mode": "simulated", "of": dict(setting.sync)}
        return self._spec(_at_best_rate(setting), sync, seed, {"until": {self.metric: self.target}})

    def whole(self, setting: Setting, seed: int) -> RunSpec:
        """The same by real workers."""
        return self._spec(
            _at_best_rate(setting), dict(setting.sync), seed, {"until": {self.metric: self.target}}
        )

    def steps(self, setting: Setting, iterations: int) -> RunSpec:
        """So many steps of real workers, with one evaluation, after them.

        At the rate with which the search begins: how long a step takes should not depend on it.
        """
        until = {"iterations": iterations, "evaluate_every": iterations}
        return self._spec(setting, dict(setting.sync), 0, until)

    def _spec(self, setting: Setting, sync: Mapping[str, Any], seed: int, more: Mapping[str, Any]) -> RunSpec:
        training = {**self.base["training"], **more}
        training["optimizer"] = {**training["optimizer"], **setting.training}
        return RunSpec.model_validate(
            {
                **self.base,
                "training": training,
                "compressor": "none" if setting.half and sync["mode"] == "allgather" else setting.line,
                "sync": sync,
                "workers": {"count": self.hosts},
                "checkpoint": {"interval": NEVER},
                "seed": seed,
            }
        )


def _at_best_rate(setting: Setting) -> Setting:
    rate = {} if setting.rate is None else {"lr": setting.rate}
    return replace(setting, training={**setting.training, **rate})


def digits16() -> DataSet:
    """MNIST's digits at half their size, with a border of one pixel: 16 x 16."""
    small = load_data(Mnist5k())
    assert isinstance(small, DataSet)
    blank = float(min(small.train_inputs.min(), small.test_inputs.min()))
    train, test = (
        pad(avg_pool2d(each, 2), (1, 1, 1, 1), value=blank)
        for each in (small.train_inputs, small.test_inputs)
    )
    return DataSet(train, small.train_labels, test, small.test_labels, small.classes)


# Of 10 and 30 local steps, DiLoCo came sooner to GPT's target with 30, and SparseLoCo with 10.
PEERS = (
    Setting("DDP, float32", "none"),
    Setting("DDP, fp16 hook", "fp16", half="fp16"),
    Setting("DDP, bf16 hook", "bf16", half="bf16"),
    Setting("PowerSGD, rank 4", "powersgd(4)", processes=True),
    Setting("DiLoCo, every 30", "none", {"mode": "weights", "every": 30, "outer": OUTER}),
    Setting("DiLoCo, every 30, 8 bits", "linear(8)", {"mode": "weights", "every": 30, "outer": OUTER}),
    Setting(
        "SparseLoCo, every 10",
        "chunked_topk(keep=64, decay=0.95) | quantile(bits=2) | chunked",
        {"mode": "weights", "every": 10},
    ),
)


def local(every: int, density: float, rate: float) -> Setting:
    """What docs/adamw.md recommends: local steps, whose sums meet a threshold."""
    return Setting(
        f"`strom`, {100 * density:g}%, every {every}",
        f"strom(density({density:g}, every=1)) | golomb_rice",
        {"mode": "weights", "every": every, "unsent": 1 / HOSTS},
        {"lr": rate},
        ours=True,
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
    "loss",
    2.2,
    (
        *PEERS,
        Setting("`linear`, 4 bits", "linear(4)", ours=True),
        local(2, 0.2, 4e-3),
        local(4, 0.1, 4e-3),
        local(10, 0.02, 4e-3),
    ),
)
NIN = Workload(
    "Network in Network",
    {
        "model": {"kind": "nin", "dropout": 0, "width_multiplier": 0.5},
        "data": {"kind": "custom", "factory": "target_settings:digits16"},
        "training": {
            "iterations": 2000,
            "evaluate_every": 10,
            "batch_per_worker": 8,
            "optimizer": {"kind": "adamw", "lr": 1e-3},
        },
    },
    "accuracy",
    0.85,
    (
        *PEERS,
        Setting("DiLoCo, every 10", "none", {"mode": "weights", "every": 10, "outer": OUTER}),
        Setting("DiLoCo, every 10, 8 bits", "linear(8)", {"mode": "weights", "every": 10, "outer": OUTER}),
        Setting("`linear`, 4 bits", "linear(4)", ours=True),
        local(2, 0.2, 1e-3),
        local(4, 0.1, 1e-3),
        local(10, 0.02, 1e-3),
    ),
)
LENET = Workload(
    "LeNet, by SGD",
    {
        "training": {
            "iterations": 2000,
            "evaluate_every": 5,
            "batch_per_worker": 16,
            "optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0.9},
        },
    },
    "accuracy",
    0.96,
    (
        *PEERS,
        Setting("`strom`, 1%", "strom(density(0.01)) | golomb_rice", ours=True),
        Setting("`strom`, 0.1%", "strom(density(0.001)) | golomb_rice", ours=True),
        Setting("`wgt`, 1%", "wgt(density(0.01))", ours=True),
        local(4, 0.1, 0.01),
        local(10, 0.02, 0.01),
    ),
)
WORKLOADS = {"lenet": LENET, "gpt": GPT, "nin": NIN}
