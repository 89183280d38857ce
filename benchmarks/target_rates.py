"""The learning rate of each setting: doubled and halved for as long as fewer steps lead to the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite
from statistics import fmean

from report import Table
from target_settings import Setting, Workload
from trainings import Trainings

from taugrad.platform.spec import RunSpec

PATIENCE = 1.25
"""A training ends after so many times the steps that the best rate so far takes, in the mean of its seeds."""


@dataclass
class Search:
    """Of one setting's rate."""

    workload: Workload
    setting: Setting
    seeds: Sequence[int]
    trainings: Trainings
    steps: dict[float, float] = field(default_factory=dict)
    """By rate, in the order in which they were tried, the mean of the seeds; infinity: one took too long."""
    given: dict[float, int] = field(default_factory=dict)
    """By rate, how many steps a training could take."""

    @property
    def best(self) -> float:
        """The rate with the fewest steps; of two equal ones, the first."""
        return min(self.steps, key=self.steps.__getitem__)

    def next(self) -> float | None:
        """What to try, or None where both neighbours of the best are tried."""
        if not self.steps:
            return self.workload.rate(self.setting)
        twice, half = 2 * self.best, self.best / 2
        neighbours = (twice, half) if isfinite(self.steps[self.best]) else (half, twice)
        return next((rate for rate in neighbours if rate not in self.steps), None)

    def specs(self, rate: float) -> list[RunSpec]:
        """A training for each seed that is not known to the end."""
        least = min(self.steps.values(), default=inf)
        most = self.workload.base["training"]["iterations"]
        self.given[rate] = min(most, ceil(PATIENCE * least)) if isfinite(least) else most
        return [self._short(rate, seed) for seed in self.seeds if not self._known(rate, seed)]

    def tell(self, rate: float) -> None:
        """All of a rate's trainings are done."""
        found = []
        for seed in self.seeds:
            if not self._known(rate, seed):
                short = self.trainings.of(self._short(rate, seed))
                if short["steps"] < self.given[rate]:  # the same as without the end that it did not come to
                    self.trainings.keep(self._whole(rate, seed), short)
            known = self.trainings.known(self._whole(rate, seed))
            found.append(known["steps"] if known else inf)
        self.steps[rate] = fmean(found)

    def _known(self, rate: float, seed: int) -> bool:
        return self.trainings.known(self._whole(rate, seed)) is not None

    def _whole(self, rate: float, seed: int) -> RunSpec:
        return self.workload.spec(replace(self.setting, rate=rate), seed)

    def _short(self, rate: float, seed: int) -> RunSpec:
        spec = self._whole(rate, seed)
        training = spec.training.model_copy(update={"iterations": self.given[rate]})
        return spec.model_copy(update={"training": training})

    def row(self) -> tuple[str, ...]:
        """The setting, its best rate, and all that was tried."""
        tried = "; ".join(
            f"{rate:g}: {steps:,.0f}" if isfinite(steps) else f"{rate:g}: not within {self.given[rate]:,}"
            for rate, steps in sorted(self.steps.items())
        )
        return self.setting.name, f"{self.best:g}", tried


def tuned(
    workload: Workload, seeds: Sequence[int], trainings: Trainings, say: Callable[[str], None]
) -> tuple[Workload, Table]:
    """The workload with each setting at the rate that leads to the target in the fewest steps.

    Returns:
        The workload, and a table of what was tried.
    """
    searches = [Search(workload, setting, seeds, trainings) for setting in workload.settings]
    while asked := [(each, rate) for each in searches if (rate := each.next()) is not None]:
        trainings.train([spec for search, rate in asked for spec in search.specs(rate)], say, every=1)
        for search, rate in asked:
            search.tell(rate)
    settings = tuple(replace(each.setting, rate=each.best) for each in searches)
    columns = ("setting", "best rate", "mean steps to the target, by rate")
    notes = (
        "A search doubles and halves a setting's best rate so far, until neither takes fewer steps. It stops "
        f"a training after {PATIENCE} times the steps of the best.",
    )
    table = Table(f"{workload.name}: learning rates", columns, [each.row() for each in searches], notes)
    return replace(workload, settings=settings), table
