"""Settings under other conditions: a worker at half speed, a text for each worker, more cores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from ..harness.report import Table, number
from ..harness.trainings import Kept, Trainings
from .network_cells import Asked, over
from .target_search import train_seeds
from .target_settings import CODED, HOSTS, Workload
from .target_times import Row, best_peer, mean_steps, minutes, ratio, results_of, timed_spec, within

APART_SEEDS = 1
"""Seeds of trainings with a text for each worker."""


def condition_tables(
    workload: Workload, fastest: Mapping[str, Row], trainings: Trainings, cells: Kept, link: str
) -> list[Table]:
    """Tables of the fastest setting of each kind over a link."""
    kinds = {row.setting.name: kind for kind, row in fastest.items()}
    rows = list(fastest.values())
    texts = [row for row in rows if kinds[row.setting.name] != CODED]  # the same training as without
    return [
        slow_worker_table(workload, rows, kinds, cells, link),
        texts_table(workload, texts, kinds, trainings, link),
    ]


def slow_worker_table(
    workload: Workload, rows: Sequence[Row], kinds: Mapping[str, str], cells: Kept, link: str
) -> Table:
    """Seconds of a step where worker 0 takes twice as long to compute; steps stay the same.

    What workers compute, on average, has its part of the sleep.
    """
    asked = [
        Asked(timed_spec(workload, row.setting), row.setting.half, slept=row.computing_ms / 1000)
        for row in rows
    ]
    slowed = []
    for row, cell in zip(rows, over(link, asked, cells), strict=True):
        computing_ms = row.computing_ms + 1000 * cell["slept"] / workload.hosts
        slowed.append((row, replace(row, cells=[cell], computing_ms=computing_ms)))
    peer = best_peer(workload, [slow for _, slow in slowed], kinds)
    lines = [
        (
            row.setting.name,
            *(number(row.step_ms.middle), str(slow.step_ms)),
            f"{slow.step_ms.middle / row.step_ms.middle:.2f}",
            *(minutes(slow.seconds), ratio(peer, slow.seconds)),
        )
        for row, slow in sorted(slowed, key=lambda pair: pair[1].seconds)
    ]
    columns = (
        *("setting", "ms a step", "ms, one worker at half speed", "times as long"),
        *("minutes to the target", "than the best peer"),
    )
    notes = ("Worker 0 sleeps before each step as long as it computes in one of the table above.",)
    return Table(f"{workload.name} over {link}, one worker at half speed", columns, lines, notes)


def more_cores_table(workload: Workload, rows: Sequence[Row], kinds: Mapping[str, str], link: str) -> Table:
    """Where each host has as much of a machine as each of four hosts has of this one."""
    part = HOSTS / workload.hosts
    quicker = [replace(row, computing_ms=part * row.computing_ms) for row in rows]
    peer = best_peer(workload, quicker, kinds)
    lines = [
        (row.setting.name, str(row.step_ms), minutes(row.seconds), ratio(peer, row.seconds))
        for row in sorted(quicker, key=lambda row: row.seconds)
    ]
    notes = (
        f"{workload.hosts} hosts share the cores that {HOSTS} share elsewhere: here computing takes {part:g} "
        "times as long as in the table above, and the rest of a step as long as there.",
    )
    columns = ("setting", "ms a step", "minutes to the target", "than the best peer")
    return Table(f"{workload.name} over {link}, if {HOSTS} hosts shared the cores", columns, lines, notes)


def texts_table(
    workload: Workload, rows: Sequence[Row], kinds: Mapping[str, str], trainings: Trainings, link: str
) -> Table:
    """Steps to the target where each worker trains on its part of the text; seconds of a step as before."""
    apart = apart_by_worker(workload)
    train_seeds(apart, [row.setting for row in rows], trainings)
    pairs = [
        (row, replace(row, steps=[result["steps"] for result in results_of(apart, row.setting, trainings)]))
        for row in rows
    ]
    peer = best_peer(workload, [differing for _, differing in pairs], kinds)
    lines = [
        (
            row.setting.name,
            *(mean_steps(row.steps), mean_steps(differing.steps), within(differing.steps)),
            *(mean_steps([step]) for step in differing.steps),
            ratio(fmean(differing.steps), fmean(row.steps)),
            *(minutes(differing.seconds), ratio(peer, differing.seconds)),
        )
        for row, differing in sorted(pairs, key=lambda pair: pair[1].seconds)
    ]
    columns = (
        *("setting", "steps, one text", "steps, a text a worker", "95% interval"),
        *(f"seed {seed}" for seed in range(apart.seeds)),
        *("times as many", "minutes to the target", "than the best peer"),
    )
    notes = (
        "Each worker trains on a quarter of the standard library's files, in the order of their names; the "
        "test part is the same.",
    )
    return Table(f"{workload.name} over {link}, a text for each worker", columns, lines, notes)


def apart_by_worker(workload: Workload) -> Workload:
    """The same with a part of the text for each worker."""
    data, batch = workload.base["data"], workload.base["training"]["batch_per_worker"]
    fields = {name: value for name, value in data.items() if name != "kind"}
    arguments = {"workers": workload.hosts, "batch": batch, **fields}
    own = {"kind": "custom", "factory": "texts:by_worker", "arguments": arguments}
    return replace(workload, base={**workload.base, "data": own}, seeds=APART_SEEDS)
