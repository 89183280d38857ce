"""The trainings of network/churn.py, and what happens in each."""

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import sleep, time
from typing import Any

from ..harness.trainings import Cells
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


def undisturbed(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """Nothing happens."""
    began = hosts.begin(scale.hosts)
    return began, began + scale.whole_s


def kills(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """One host after the other is killed, and is back after a while."""
    began = hosts.begin(scale.hosts)
    for place in range(int(scale.whole_s / scale.kill_s)):
        sleep_until(began + (place + 0.5) * scale.kill_s)
        hosts.kill(place % scale.hosts)
        sleep(scale.back_s)
        hosts.start(place % scale.hosts)
    return began, began + scale.whole_s


def two_six_three(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """Two members; four join from a quarter of the time on, three leave from three quarters on."""
    began = hosts.begin(2)
    for host in range(2, 6):
        sleep_until(began + scale.whole_s * (0.2 + 0.025 * host))
        hosts.start(host)
    for host in (0, 2, 4):
        sleep_until(began + scale.whole_s * (0.75 + 0.02 * host))
        hosts.notify(host)
    return began, began + scale.whole_s


def slow_link(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """Nothing happens, for a shorter time."""
    began = hosts.begin(scale.hosts)
    return began, began + scale.part_s


def slow_host(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """The last host has a quarter of the speed."""
    hosts.paces[scale.hosts - 1] = 4 * scale.pace_s
    return slow_link(hosts, scale)


def suspended(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """The last host is stopped for a while."""
    began = hosts.begin(scale.hosts)
    sleep(scale.part_s / 4)
    hosts.suspend(scale.hosts - 1, scale.suspended_s)
    return began, began + scale.part_s


def coordinator_killed(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """The coordinator is killed, and is back after a while."""
    began = hosts.begin(scale.hosts)
    sleep(scale.part_s / 4)
    hosts.restart_coordinator(scale.away_s)
    return began, began + scale.part_s


def join(hosts: Hosts, scale: Scale) -> tuple[float, float]:
    """Two members, and two new ones, one after the other."""
    began = hosts.begin(2)
    for host in (2, 3):
        started = time()
        hosts.start(host)
        hosts.wait_for(host, "exchange", started)
    return began, time()


def sleep_until(at: float) -> None:
    """Sleeps until a time."""
    sleep(max(0.0, at - time()))


@dataclass(frozen=True)
class Case:
    """A training.

    `act` gets the hosts, and returns when all were in and when the time was over.
    """

    act: Callable[[Hosts, Scale], tuple[float, float]]
    kind: type[Hosts] = Hosts
    hosts: int = 0
    """If not as many as usual."""
    has_seeds: bool = False
    """Whether it is done several times."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    slow_link: bool = False
    """Whether the last host has a tenth of the link."""
    large: bool = False
    """Whether the model is the large one."""

    def model(self, scale: Scale) -> tuple[int, int]:
        """Layers and width."""
        return scale.large if self.large else (Settings.layers, Settings.width)


MOMENTS = {"moments": True}
CASES: dict[str, Case] = {
    "undisturbed": Case(undisturbed, has_seeds=True),
    "kills": Case(kills, has_seeds=True),
    "2 to 6 to 3": Case(two_six_three, hosts=6),
    "2 to 6 to 3, with moments": Case(two_six_three, hosts=6, settings=MOMENTS),
    "fixed group, kills": Case(kills, FixedGroup),
    "DDP": Case(undisturbed, Elastic),
    "DDP, kills": Case(kills, Elastic),
    "DDP, kills, checkpoints every 10 s": Case(kills, Elastic, settings={"checkpoint_s": 10.0}),
    "a quarter of the speed": Case(slow_host),
    "a tenth of the link": Case(slow_link, slow_link=True),
    "suspended": Case(suspended),
    "coordinator killed": Case(coordinator_killed),
    "join": Case(join, hosts=4),
    "join, with moments": Case(join, hosts=4, settings=MOMENTS),
    "join, large": Case(join, hosts=4, large=True),
    "join, large, with moments": Case(join, hosts=4, large=True, settings=MOMENTS),
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
        try:
            began, ended = case.act(hosts, scale)
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


class Records:
    """All trainings, by name.

    Attributes:
        cases: what was trained.
    """

    def __init__(self, cells: Cells, scale: Scale) -> None:
        """Trains what is not known, some at a time."""
        self._cells, self._scale = cells, scale
        self.cases = {name: case for name, case in CASES.items() if scale.variants or not case.settings}
        asked = [(name, 0) for name in self.cases]
        seeds = range(1, scale.seeds)
        asked += [(name, seed) for name, case in self.cases.items() if case.has_seeds for seed in seeds]
        self._records: dict[str, list[Record]] = {name: [] for name in self.cases}
        with ThreadPoolExecutor(TOGETHER) as pool:
            for (name, _), record in zip(asked, pool.map(self._record, asked), strict=True):
                self._records[name].append(record)

    def _record(self, asked: tuple[str, int]) -> Record:
        name, seed = asked
        cell = self._cells.of({"case": name, "seed": seed}, lambda: trained(CASES[name], self._scale))
        return Record(**{part.name: cell[part.name] for part in fields(Record)})

    def __getitem__(self, name: str) -> list[Record]:
        return self._records[name]
