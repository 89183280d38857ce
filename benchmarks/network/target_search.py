"""The same search for each contender: its local steps, its learning rate and its own knobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from statistics import fmean

from taugrad.platform.spec import RunSpec

from ..harness.report import Table, number
from ..harness.trainings import Trainings
from . import Link
from .target_settings import Contender, Point, Setting, Workload

PATIENCE = 1.1
"""A training ends where it would take so many times as long as the best, were bytes free, on each link."""
SLACK = 1.15
"""A setting is measured on a link where it may take so many times what the contender's best may take."""
STEP_S, EXCHANGE_S = 0.078, 0.050
"""Seconds of a step's computing and of an exchange of nothing, about: they only say what to try next."""
BEGUN = 4
"""Trainings of a contender with more hosts."""
Found = Mapping[str, float]


def known(trainings: Trainings, spec: RunSpec, most: int) -> Found | None:
    """What a training of at most so many steps came to, or None where it is not done yet."""
    result = trainings.known(spec)
    return result if result and (isfinite(result["steps"]) or result.get("within", inf) >= most) else None


def train(trainings: Trainings, asked: Iterable[tuple[RunSpec, int]]) -> None:
    """Trains what is not known, until the target or for so many steps, and keeps it."""
    shorter = [
        (
            spec,
            most,
            spec.model_copy(update={"training": spec.training.model_copy(update={"iterations": most})}),
        )
        for spec, most in asked
        if known(trainings, spec, most) is None
    ]
    trainings.train([short for *_, short in shorter], every=1)
    for spec, most, short in shorter:
        trainings.keep(spec, {**trainings.of(short), "within": float(most)})


def train_seeds(workload: Workload, settings: Sequence[Setting], trainings: Trainings) -> None:
    """Trains settings with all seeds; these may take longer than those of a search."""
    seeds, most = range(workload.seeds), 2 * workload.longest
    specs = [(workload.spec(setting, seed), most) for seed in seeds for setting in settings]
    train(trainings, specs)


@dataclass
class Search:
    """Searches a contender's settings, with the first seed."""

    workload: Workload
    contender: Contender
    links: Sequence[str]
    trainings: Trainings
    results: dict[Point, Found] = field(default_factory=dict)
    """What was tried, in this order."""

    def next(self) -> Point | None:
        """What to try: the starts, then a neighbour of the best setting of each link in turn.

        Not what would be too slow even if it took as few steps as DDP.
        """
        if len(self.results) == self.contender.trainings:
            return None
        link = self.links[len(self.results) % len(self.links)]
        best = sorted(self.results, key=lambda point: self.seconds(point, link))
        near = (neighbour for point in best for neighbour in self.contender.neighbours(point))
        new = (start for start in (*self.contender.starts, *near) if start not in self.results)
        return next((point for point in new if self.asked(point)[1] >= self.workload.ddp), None)

    def asked(self, point: Point) -> tuple[RunSpec, int]:
        """A training, and how many steps it may take: a number at which the workload is evaluated."""
        spec = self.workload.spec(self.contender.setting(point), 0)
        spent = {
            link: min(
                (result["steps"] * self._step(at, link) for at, result in self.results.items()), default=inf
            )
            for link in self.links
        }
        most = max(PATIENCE * seconds / self._step(point, link) for link, seconds in spent.items())
        interval = spec.training.evaluate_every
        return spec, int(min(most, self.workload.longest) // interval) * interval

    def tell(self, point: Point) -> None:
        """The training is done."""
        result = known(self.trainings, *self.asked(point))
        assert result is not None
        self.results[point] = result

    def seconds(self, point: Point, link: str) -> float:
        """About how long it takes to the target over a link."""
        result = self.results[point]
        if not isfinite(result["steps"]):
            return inf
        sent = 8 * (self.workload.hosts - 1) * result["bytes"] / Link.parse(link).rate
        return result["steps"] * self._step(point, link, sent)

    def _step(self, point: Point, link: str, sent: float = 0.0) -> float:
        """About the seconds of a step whose bytes are under way for `sent`."""
        late = float(self.contender.setting(point).sync.get("delay_steps", 0))
        exchange = EXCHANGE_S + 2 * Link.parse(link).delay + point[0] * sent
        return STEP_S + max(0.0, exchange - late * STEP_S) / point[0]

    def over(self, link: str) -> list[Point]:
        """What may be among the fastest on a link; of settings with one label, the best over all links."""
        best: dict[str, Point] = {}
        for point in sorted(self.results, key=self._mean_seconds):
            best.setdefault(self.contender.setting(point).name, point)
        least = min(self.seconds(point, link) for point in best.values())
        return [point for point in best.values() if self.seconds(point, link) <= SLACK * least < inf]

    def _mean_seconds(self, point: Point) -> float:
        return fmean(self.seconds(point, link) for link in self.links)

    def settings(self, link: str) -> list[Setting]:
        return [self.contender.setting(point) for point in self.over(link)]

    def table(self) -> Table:
        """All that was tried."""
        measured = {point for link in self.links for point in self.over(link)}
        rate = self.workload.base["training"]["optimizer"]["lr"]
        rows = []
        for point, result in self.results.items():
            every, factor, *rest = point
            reached = isfinite(result["steps"])
            steps = f"{result['steps']:,.0f}" if reached else f"not within {result['within']:,.0f}"
            kilobytes = number(result["bytes"] / 1000) if reached else ""
            values = (f"{value:g}" for value in (every, factor * rate, *rest))
            rows.append((*values, steps, kilobytes, "yes" if point in measured else ""))
        columns = ("every", "learning rate", *tuple(self.contender.knobs)[2:])
        title = f"{self.workload.name}: {self.contender.name}, {len(rows)} trainings"
        return Table(title, (*columns, "steps, seed 0", "KB a step and host", "measured"), rows)


def searched(workload: Workload, links: Sequence[str], trainings: Trainings) -> list[Search]:
    """The searches of all contenders, done."""
    searches = [Search(workload, contender, links, trainings) for contender in workload.contenders]
    while todo := [(search, point) for search in searches if (point := search.next()) is not None]:
        train(trainings, [search.asked(point) for search, point in todo])
        for search, point in todo:
            search.tell(point)
    return searches


def with_more_hosts(workload: Workload, searches: Sequence[Search], link: str) -> Workload:
    """A workload whose contenders begin with the best settings that searches with fewer hosts came to."""
    return replace(workload, contenders=[_begun(search, link, workload.hosts) for search in searches])


def _begun(search: Search, link: str, hosts: int) -> Contender:
    """With the best setting; rarer exchanges, a higher rate, exchanges more often, or a lower rate."""
    best = min(search.results, key=lambda point: search.seconds(point, link))
    knobs = dict(search.contender.knobs)
    place = list(knobs).index("unsent") if "unsent" in knobs else None
    if place is not None and best[place] == 1 / search.workload.hosts:  # as in the workers' mean
        knobs["unsent"] = (0.0, 1 / hosts, 0.5)
        best = (*best[:place], 1 / hosts, *best[place + 1 :])
    contender = replace(search.contender, knobs=knobs)
    near = [point for point in contender.neighbours(best) if point[2:] == best[2:]]
    starts = (best, *sorted(near, key=lambda point: (point < best, point[0] == best[0])))[:BEGUN]
    return replace(contender, starts=starts, trainings=BEGUN)
