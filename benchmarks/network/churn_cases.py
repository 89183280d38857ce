"""The trainings of network/churn.py, and what happens in each."""

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from time import sleep, time
from typing import Any

from ..harness.trainings import Kept
from . import Link, Network
from .churn_hosts import Elastic, FixedGroup, Hosts
from .churn_member import Settings
from .churn_record import Record
from .topology import Topology

LINK, SLOW_LINK = "50mbit,20ms", "5mbit,20ms"
TOGETHER = 3
"""Trainings at a time: their hosts sleep most of the time."""
_ROUNDS_AFTER = 3
"""Rounds for which a training goes on after its time: what is under way comes into one of them."""


@dataclass(frozen=True)
class Scale:
    """How large and how long trainings are."""

    hosts: int = 4
    pace_s: float = 0.5
    """The least time of a step; twice that for the large model."""
    whole_s: float = 270.0
    """Of an undisturbed training, one with kills, and one whose number of members changes."""
    part_s: float = 120.0
    """Of one that something happens to once."""
    kill_s: float = 60.0
    back_s: float = 20.0
    suspended_s: float = 30.0
    away_s: float = 10.0
    """For which there is no coordinator."""
    seeds: int = 3
    variants: bool = True
    """Whether cases with settings of their own are trained, too."""
    large: tuple[int, int] = (8, 512)
    """Layers and width of the large model."""


FULL = Scale()
QUICK = Scale(
    hosts=3, pace_s=0.1, whole_s=14, part_s=10, kill_s=12, back_s=3, suspended_s=4, away_s=2, seeds=1,
    variants=False, large=(2, 256),
)  # fmt: skip


Act = Callable[[Hosts, Scale, float], None]
"""What happens in a training, whose hosts had all exchanged at a time."""


def nothing(hosts: Hosts, scale: Scale, began: float) -> None:
    """Nothing happens."""


def kills(hosts: Hosts, scale: Scale, began: float) -> None:
    """One host after the other is killed, and is back after a while."""
    for place in range(int(scale.whole_s / scale.kill_s)):
        sleep_until(began + (place + 0.5) * scale.kill_s)
        hosts.kill(place % scale.hosts)
        sleep(scale.back_s)
        hosts.start(place % scale.hosts)


def two_six_three(hosts: Hosts, scale: Scale, began: float) -> None:
    """Four join two members from a quarter of the time on, three leave from three quarters on."""
    for host in range(2, 6):
        sleep_until(began + scale.whole_s * (0.2 + 0.025 * host))
        hosts.start(host)
    for host in (0, 2, 4):
        sleep_until(began + scale.whole_s * (0.75 + 0.02 * host))
        hosts.notify(host)


def suspended(hosts: Hosts, scale: Scale, began: float) -> None:
    """The last host is stopped for a while."""
    sleep(scale.part_s / 4)
    hosts.suspend(scale.hosts - 1, scale.suspended_s)


def coordinator_killed(hosts: Hosts, scale: Scale, began: float) -> None:
    """The coordinator is killed, and is back after a while."""
    sleep(scale.part_s / 4)
    hosts.restart_coordinator(scale.away_s)


def join(hosts: Hosts, scale: Scale, began: float) -> None:
    """Two new members join, one after the other."""
    for host in (2, 3):
        started = time()
        hosts.start(host)
        hosts.wait_for(host, "exchange", started)


def sleep_until(at: float) -> None:
    sleep(max(0.0, at - time()))


@dataclass(frozen=True)
class Case:
    """A training."""

    act: Act
    kind: type[Hosts] = Hosts
    begin: int = 0
    """Hosts that begin, if not as many as usual."""
    hosts: int = 0
    """All hosts, if not as many as usual."""
    whole: bool = True
    """Whether it is one of those from which the examples learned are compared."""
    has_seeds: bool = False
    """Whether it is done several times."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    slow_host: bool = False
    """Whether the last host has a quarter of the speed."""
    slow_link: bool = False
    """Whether the last host has a tenth of the link."""
    large: bool = False
    """Whether the model is the large one."""

    def model(self, scale: Scale) -> tuple[int, int]:
        return scale.large if self.large else (Settings.layers, Settings.width)

    def seconds(self, scale: Scale) -> float:
        """How long it goes on; a `join` ends when all have joined."""
        return scale.whole_s if self.whole else scale.part_s


MOMENTS = {"moments": True}
_CHANGING = Case(two_six_three, begin=2, hosts=6)
_DISTURBED = Case(nothing, whole=False)
_JOIN = Case(join, begin=2, hosts=4, whole=False)
CASES: dict[str, Case] = {
    "undisturbed": Case(nothing, has_seeds=True),
    "kills": Case(kills, has_seeds=True),
    "2 to 6 to 3": _CHANGING,
    "2 to 6 to 3, with moments": replace(_CHANGING, settings=MOMENTS),
    "fixed group, kills": Case(kills, FixedGroup),
    "DDP": Case(nothing, Elastic),
    "DDP, kills": Case(kills, Elastic),
    "DDP, kills, checkpoints every 10 s": Case(kills, Elastic, settings={"checkpoint_s": 10.0}),
    "a quarter of the speed": replace(_DISTURBED, slow_host=True),
    "a tenth of the link": replace(_DISTURBED, slow_link=True),
    "suspended": replace(_DISTURBED, act=suspended),
    "coordinator killed": replace(_DISTURBED, act=coordinator_killed),
    "join": _JOIN,
    "join, with moments": replace(_JOIN, settings=MOMENTS),
    "join, large": replace(_JOIN, large=True),
    "join, large, with moments": replace(_JOIN, large=True, settings=MOMENTS),
}


def trained(case: Case, scale: Scale) -> dict[str, Any]:
    """A training: the fields of its `Record`."""
    links = [Link.parse(LINK)] * (case.hosts or scale.hosts)
    if case.slow_link:
        links[-1] = Link.parse(SLOW_LINK)
    layers, width = case.model(scale)
    settings = {"layers": layers, "width": width, **case.settings}
    pace_s = scale.pace_s
    if case.large:
        settings, pace_s = {**settings, "batch": 1}, 2 * pace_s
    topology = Topology(tuple(links), (0,) * len(links))
    with Network(topology) as network, tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
        hosts = case.kind(network, Path(folder), pace_s, **settings)
        if case.slow_host:
            hosts.paces[scale.hosts - 1] = 4 * pace_s
        try:
            began = hosts.begin(case.begin or scale.hosts)
            case.act(hosts, scale, began)
            ended = time() if case.act is join else began + case.seconds(scale)
            sleep_until(ended + _ROUNDS_AFTER * Settings.every * pace_s)
            lines = hosts.lines()
        finally:
            hosts.close()
    return {
        "seconds": ended - began,
        "rolls_back": case.kind is not Hosts,
        "lines": [{**line, "at": line["at"] - began} for line in lines],
        "spans": [[host, start - began, end - began] for host, start, end in hosts.spans],
        "events": [[at - began, what, host] for at, what, host in hosts.events],
    }


def cases_of(scale: Scale) -> dict[str, Case]:
    return {name: case for name, case in CASES.items() if scale.variants or not case.settings}


def records_of(cells: Kept, scale: Scale) -> dict[str, list[Record]]:
    """All trainings, by name; trains what is not known, some at a time."""
    cases = cases_of(scale)
    asked = [(name, 0) for name in cases]
    asked += [
        (name, seed) for name, case in cases.items() if case.has_seeds for seed in range(1, scale.seeds)
    ]

    def record(name: str, seed: int) -> Record:
        cell = cells.of({"case": name, "seed": seed}, lambda: trained(CASES[name], scale))
        return Record(**{part.name: cell[part.name] for part in fields(Record)})

    records: dict[str, list[Record]] = {name: [] for name in cases}
    with ThreadPoolExecutor(TOGETHER) as pool:
        for (name, _), training in zip(asked, pool.map(record, *zip(*asked, strict=True)), strict=True):
            records[name].append(training)
    return records
