"""From trainings and cells to times: steps to the target, and what a step takes over a link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks import claims
from taugrad.platform.tasks.metric import LOSS

from ..harness.report import Spread, number
from ..harness.trainings import Kept, Trainings
from .network_cells import Asked, over
from .target_search import train_seeds
from .target_settings import CODED, Setting, Workload

ROUNDS = 4
"""So many exchanges are timed, at least."""
SKIPPED = 10
"""Steps at first that are not counted: DDP forms its buckets anew, thresholds find their level."""
CLOSE = 1.3
"""What takes at most so many times as long as the fastest is measured again, and trained with all seeds,
where a workload says so."""


@dataclass(frozen=True)
class Row:
    """A setting over a link.

    Attributes:
        steps: to the target, by seed; infinity where it is not reached.
        cells: what was measured over the link, each time.
        computing_ms: what a worker computes in a step, on average over all cells of this link with the same
            optimizer. It depends on what else the machine does, not on what is exchanged.
    """

    setting: Setting
    steps: Sequence[float]
    cells: list[Mapping[str, Any]]
    computing_ms: float

    @property
    def step_ms(self) -> Spread:
        """A step takes, by its rounds, the mean of all, and from the 10th to the 90th percentile of them.

        In place of what workers computed meanwhile, on average, they compute `computing_ms`.
        """
        rounds = np.concatenate(
            [_rounds_ms(cell, self.setting) - _computed_ms(cell, self.setting) for cell in self.cells]
        )
        return Spread.of((rounds + self.computing_ms).tolist(), float(rounds.mean()) + self.computing_ms)

    @property
    def means_ms(self) -> list[float]:
        """A step took, each time that it was measured."""
        return [float(_rounds_ms(cell, self.setting).mean()) for cell in self.cells]

    @property
    def seconds(self) -> float:
        """To the target."""
        return fmean(self.steps) * self.step_ms.middle / 1000

    @property
    def peak(self) -> float | None:
        """Bit/s, where it was measured: the highest."""
        return max((cell["peak"] for cell in self.cells if "peak" in cell), default=None)


def skipped(setting: Setting) -> int:
    """Steps that are not timed: whole rounds."""
    return -(-SKIPPED // setting.every) * setting.every


def _rounds_ms(cell: Mapping[str, Any], setting: Setting) -> np.ndarray[Any, np.dtype[np.float64]]:
    done = np.array(cell["done"])[skipped(setting) - 1 :: setting.every]
    return 1000 * np.diff(done) / setting.every


def _computed_ms(cell: Mapping[str, Any], setting: Setting) -> float:
    return 1000 * fmean(cell["computing"][skipped(setting) :])


def _same_computing(setting: Setting) -> tuple[str, str, bool]:
    """Where this is the same, a step's computing is: the optimizer, the model, whether all wait each step."""
    return setting.optimizer.get("kind", ""), setting.factory, setting.every == 1


def timed_spec(workload: Workload, setting: Setting) -> RunSpec:
    """Steps enough: whole rounds of local steps."""
    rounds = max(ROUNDS, min(workload.rounds, -(-workload.least_steps // setting.every)))
    return workload.steps(setting, skipped(setting) + rounds * setting.every)


def results_of(workload: Workload, setting: Setting, trainings: Trainings) -> list[Mapping[str, float]]:
    """The results of a setting's seeds that were trained; the first one always was."""
    results = [trainings.known(workload.spec(setting, seed)) for seed in range(workload.seeds)]
    return [result for result in results if result is not None]


def rows_over(
    workload: Workload, settings: Sequence[Setting], trainings: Trainings, cells: Kept, link: str
) -> list[Row]:
    """Each setting over a link; what is close to the fastest is measured again."""
    cells_of = {
        setting.name: [cell]
        for setting, cell in zip(settings, over(link, _asked(workload, settings), cells), strict=True)
    }

    def rows() -> list[Row]:
        computed: dict[tuple[str, str, bool], list[float]] = {}
        for setting in settings:
            times = [_computed_ms(cell, setting) for cell in cells_of[setting.name]]
            computed.setdefault(_same_computing(setting), []).append(fmean(times))
        return [
            Row(
                setting,
                [result["steps"] for result in results_of(workload, setting, trainings)],
                cells_of[setting.name],
                fmean(computed[_same_computing(setting)]),
            )
            for setting in settings
        ]

    first = rows()
    most = CLOSE * min(row.seconds for row in first)
    close = [row.setting for row in first if row.seconds <= most]
    if workload.brief:
        train_seeds(workload, close, trainings)
    for time in range(2, workload.times + 1):
        for setting, cell in zip(close, over(link, _asked(workload, close, time), cells), strict=True):
            cells_of[setting.name].append(cell)
    return rows()


def _asked(workload: Workload, settings: Sequence[Setting], time: int = 1) -> list[Asked]:
    return [Asked(timed_spec(workload, setting), setting.half, time=time) for setting in settings]


def best_peer(workload: Workload, rows: Sequence[Row], kinds: Mapping[str, str]) -> float:
    """The least seconds to the target of what is not ours."""
    ours = {contender.name for contender in workload.contenders if contender.ours} | {CODED}
    return min(row.seconds for row in rows if kinds[row.setting.name] not in ours)


def within(steps: Sequence[float], factor: float = 1) -> str:
    """The 95% interval of the seeds' mean, times a factor."""
    interval = claims.interval(steps, None, LOSS) if np.isfinite(steps).all() else None
    return " to ".join(number(factor * end) for end in interval) if interval else ""


def mean_steps(values: Sequence[float]) -> str:
    """In words where a seed did not come to the target."""
    mean = fmean(values)
    return f"{mean:,.0f}" if np.isfinite(mean) else "not reached"


def minutes(seconds: float) -> str:
    """Or that the target was not reached."""
    return number(seconds / 60) if np.isfinite(seconds) else "not reached"


def ratio(base: float, seconds: float) -> str:
    """How many times faster than a base, if both came to the target."""
    return number(base / seconds) if np.isfinite(base) and np.isfinite(seconds) else ""
