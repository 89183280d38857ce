"""Trainings over a link that becomes slower and fast again: `sync.adapt` beside densities that stay.

    python -m benchmarks.network.network_adapt [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from ..harness.report import RESULTS, Place, Table, number, publish, read_options
from . import Link, Network, uniform, why_not
from .network_workers import TIMEOUT_S, start

RATES = ("100mbit", "10mbit", "100mbit")
"""Of the three parts of a run."""
DELAYS, QUICK_DELAYS = ("0ms", "10ms"), ("0ms",)
HOSTS, QUICK_HOSTS = (2, 4), (2,)
STEPS, QUICK_STEPS = 120, 100
"""Of each part."""
WITHIN = 1.5
"""A density follows when it is so near to what it comes to: its median in the part's second half."""
GOAL = 50
DENSITIES = (0.001, 0.01, 0.1)
"""That stay."""
BEGINS = 0.01
BOUNDS = (0.0005, 0.1)
PLACE = Place(
    RESULTS.parent / "network.md",
    "<!-- benchmarks/network/network_adapt.py writes from here -->",
    "<!-- to here: adapt -->",
)
INTRODUCTION = (
    "A perceptron of 0.81M parameters, 256 examples per host and step, `strom | golomb_rice`. Every host "
    "is a network namespace with one thread, and all share this machine's {cores} cores. The link carries "
    "{fast} at first, {slow} from step {steps}, and {fast} again from step {again}; there are {all} steps. "
    "`sync.adapt` may choose densities from {least:g} to {most:g} and starts with {begins:g}; the other "
    "runs keep theirs. Milliseconds a step: the median of a part's second half. Followed: steps from a "
    "change to the first density within {within:g} times of the final one. Loss: training loss, mean of "
    "the last 20 steps. Delays are one way."
)


@dataclass(frozen=True)
class Told:
    """What host 0 said of each step, and whether replicas ended equal."""

    steps: list[dict[str, Any]]
    equal: bool

    def part(self, number: int) -> list[dict[str, Any]]:
        """The first part is 0."""
        phase = len(self.steps) // len(RATES)
        return self.steps[number * phase : (number + 1) * phase]

    def milliseconds(self, number: int) -> float:
        """Of a step of a part, when it had settled."""
        part = self.part(number)
        return 1000 * median(step["seconds"] for step in part[len(part) // 2 :])

    def density(self, number: int) -> float:
        """What a part comes to."""
        part = self.part(number)
        return median(step["density"] for step in part[len(part) // 2 :])

    def followed(self, number: int) -> str:
        """Steps until then."""
        settled = self.density(number)
        for count, step in enumerate(self.part(number)):
            if settled / WITHIN <= step["density"] <= settled * WITHIN:
                return str(count)
        return "not"

    def seconds(self) -> float:
        """Of all steps but the first, in which DDP and numba begin."""
        return sum(step["seconds"] for step in self.steps[1:])

    def loss(self) -> float:
        """At the end."""
        return fmean(step["loss"] for step in self.steps[-20:])


def spec_of(hosts: int, steps: int, density: float | None) -> dict[str, Any]:
    """A density that stays, or None for one that follows the link."""
    sync: dict[str, Any] = {"mode": "allgather"}
    if density is None:
        sync["adapt"] = {"density": list(BOUNDS)}
    return {
        "model": {"kind": "mlp", "widths": [1024], "activation": "tanh"},
        "training": {
            "iterations": len(RATES) * steps,
            "evaluate_every": len(RATES) * steps,
            "batch_per_worker": 256,
            "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0},
        },
        "compressor": f"strom(density({BEGINS if density is None else density:g})) | golomb_rice",
        "sync": sync,
        "workers": {"count": hosts},
        "checkpoint": {"interval": 10**6},
    }


def trained(hosts: int, delay: str, steps: int, density: float | None) -> Told:
    """A run whose link changes after each part."""
    links = [uniform(hosts, Link.parse(f"{rate},{delay}")) for rate in RATES]
    text = json.dumps(spec_of(hosts, steps, density))
    told: list[dict[str, Any]] = []
    with Network(links[0]) as network:
        workers = start(network, "adapt", hear_all=True, spec=text)
        hashes = []
        for line in iter(workers[0].stdout.readline, ""):
            if not line.startswith("{"):
                hashes.append(line)
                break
            told.append(json.loads(line))
            if len(told) % steps == 0 and len(told) < len(RATES) * steps:
                network.change(links[len(told) // steps])
        hashes += [worker.communicate(timeout=TIMEOUT_S)[0] for worker in workers[1:]]
        if any(worker.wait(TIMEOUT_S) for worker in workers):
            raise RuntimeError(f"{hosts} hosts, {delay}: a worker failed")
    return Told(told, len(set(hashes)) == 1)


def row(hosts: int, delay: str, density: float | None, told: Told) -> tuple[str, ...]:
    """Of a run."""
    parts = range(len(RATES))
    follows = density is None
    return (
        delay,
        str(hosts),
        "follows" if density is None else f"{100 * density:g}%",
        *(number(told.milliseconds(part)) for part in parts),
        *((f"{100 * told.density(part):.2g}%" if follows else "") for part in parts),
        *((told.followed(part) if follows else "") for part in parts[1:]),
        number(told.seconds()),
        f"{told.loss():.3f}",
        "yes" if told.equal else "NO",
    )


def main(arguments: Sequence[str]) -> int:
    options = read_options("network.network_adapt", __doc__.partition("\n")[0], arguments)
    if reason := why_not():
        print(f"no network can be made here: {reason}", file=sys.stderr)
        return 2
    steps = QUICK_STEPS if options.quick else STEPS
    rows = []
    for delay in QUICK_DELAYS if options.quick else DELAYS:
        for hosts in QUICK_HOSTS if options.quick else HOSTS:
            for density in (None,) if options.quick else (None, *DENSITIES):
                name = "follows" if density is None else f"{density:g}"
                print(f"{hosts} hosts, {delay}, density {name} ...", flush=True)
                rows.append(row(hosts, delay, density, trained(hosts, delay, steps, density)))
    columns = (
        *("delay", "hosts", "density"),
        *("ms a step, first", "slow", "fast again"),
        *("density, first", "density, slow", "density, fast again"),
        *("followed, slow", "followed, fast", "s in all", "loss", "replicas equal"),
    )
    notes = (f"Goal: a density follows within {GOAL} steps.",)
    introduction = INTRODUCTION.format(
        cores=len(os.sched_getaffinity(0)),
        fast=RATES[0],
        slow=RATES[1],
        steps=steps,
        again=2 * steps,
        all=len(RATES) * steps,
        least=BOUNDS[0],
        most=BOUNDS[1],
        begins=BEGINS,
        within=WITHIN,
    )
    table = Table("A link that becomes slower and fast again", columns, rows, notes)
    publish("network_adapt", options, introduction, [table], PLACE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
