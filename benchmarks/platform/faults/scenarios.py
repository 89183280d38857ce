"""What is run: a command and a spec that take seconds, and what is found of them at the end."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["train", "search", "auto", "submit"]

_SPEC = """experiment: {experiment}
name: soak
data: {{kind: digits}}
model: {model}
training: {{epochs: {epochs}, batch_size: 64, optimizer: {{lr: 0.05, momentum: 0, weight_decay: 0}}}}
compressor: "{line}"
sync: {sync}
checkpoint: {{interval: 60}}
workers: {{max_restarts: 5}}
"""
_MLP, _CONVOLUTIONS = "{kind: mlp, widths: [64]}", "{kind: lenet}"
_SPARSE = "strom(tau=0.02) | golomb_rice"

MODES = {
    "allgather": "{}",
    "ring": "{mode: gradients, pattern: ring}",
    "parameter_server": "{mode: gradients, pattern: parameter_server}",
    "sharded": "{mode: gradients, pattern: sharded}",
    "weights": "{mode: weights, every: 5}",
    "hybrid": "{mode: hybrid}",
    "async": "{mode: async, follow_schedule: true, step_times: [1, 2], delay: [0, 2]}",
    "simulated": "{mode: simulated}",
}
"""By name, the `sync` of a spec; async on a schedule, without which no two runs of it are alike."""


@dataclass(frozen=True)
class Scenario:
    """A command with its spec."""

    kind: Kind
    mode: str
    place: Literal["own Ray", "shared Ray", "MLflow server", "job head", "two machines"] = "own Ray"
    """On a Ray of the command's own or of several commands, on its own with MLflow's server, as a job, or on
    a cluster of two machines."""

    @property
    def name(self) -> str:
        """Such as `train allgather`; where it runs changes no bit."""
        return f"{self.kind} {self.mode}"

    def spec(self, experiment: str) -> str:
        """The spec's text, for an experiment of MLflow's."""
        hybrid = self.mode == "hybrid"
        few = {"search": 4, "auto": 12, "train": 50, "submit": 50}[self.kind]
        text = _SPEC.format(
            experiment=experiment,
            model=_CONVOLUTIONS if hybrid else _MLP,
            epochs=12 if hybrid else few,
            line="linear(8)" if hybrid or self.mode == "ring" else _SPARSE,
            sync=MODES[self.mode],
        )
        if self.kind == "search":
            text = text.replace("tau=0.02", "tau={'log': [1e-3, 1e-1]}")
            text += "search: {trials: 5, sampler: random, seed: 3, concurrency: 2}\n"
        return text

    def arguments(self, address: str = "") -> list[str]:
        """The command's.

        Args:
            address: of the job server, for `submit`.
        """
        more = {"train": [], "search": [], "auto": ["--tolerance", "2"], "submit": ["--address", address]}[
            self.kind
        ]
        return [self.kind, "spec.yaml", *more]

    @property
    def begun(self) -> str:
        """What its output has once it is at work, and again while it is; a regular expression."""
        return r"trial \d+ .*begins" if self.kind == "search" else r"epoch +\d+/"


SEARCH, AUTO = Scenario("search", "simulated"), Scenario("auto", "allgather")
SUBMIT = Scenario("submit", "allgather", "job head")


def train(*modes: str, place: str = "own Ray") -> list[Scenario]:
    """`taugrad train` in some modes."""
    return [Scenario("train", mode, place) for mode in modes]  # type: ignore[arg-type]
