"""Whether thresholds that find themselves come up to a search, and how they compare with DL4J's and SIDCo's.

    python -m benchmarks.choose.auto_threshold [--quick] [--write]

For every pair of model and data, `taugrad search` with 60 trials of one tau is the reference. Everybody else
has three trainings at most; they and the search's front are trained with new seeds. So is the front of a
second search, with momentum in the compressor, as `taugrad auto` has it. An interrupted benchmark goes on;
what it knows is in build/auto_threshold.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from taugrad.platform.spec import RunSpec
from taugrad.search.attempts import Attempt

from ..harness.report import RESULTS, Place, Table, publish, read_options, say
from ..harness.trainings import Trainings
from .auto_command import TOLERANCES as ASKED
from .auto_command import command_table, commanded
from .auto_judging import Point, front_of, hypervolume, read_search, thinned, trainings_in
from .auto_pairs import (
    CORRECTED,
    DEFAULT,
    METHOD,
    PAIRS,
    RIVALS,
    Entrant,
    Pair,
    Searched,
    entrants,
    results_of,
    run_searches,
    searches,
    tracking_uri,
)

FOLDER = Path("build") / "auto_threshold"
PLACE = Place(
    RESULTS.parent / "search.md",
    "<!-- benchmarks/choose/auto_threshold.py writes from here -->",
    "<!-- to here -->",
    tables=3,
)
SEARCHES = {METHOD: "search", CORRECTED: "search, corrected"}
TRIALS = 60
SEEDS = (1, 2, 3)
"""Of all trainings but the searches', which have seed 0."""
CHANCE = 0.1
"""The accuracy of guessing one of ten digits: the first measure counts from there."""
NEAR = 0.05
"""The second one counts accuracy from so much below the run without compression."""
GOAL = 99.0


@dataclass(frozen=True)
class Front:
    """A search's front."""

    taus: list[float]
    trained: list[list[Point]]
    """By seed and tau."""
    searched: list[Point]
    """The search's trials, as it saw them."""


@dataclass(frozen=True)
class Judged:
    """What everybody came to on one pair."""

    pair: Pair
    bare: list[Point]
    """Without compression, by seed."""
    fronts: Mapping[str, "Front"]
    """Of the searches, by method: METHOD's is the reference."""
    settings: Mapping[str, list[list[Point]]]
    """By entrant and seed, one point a setting."""
    entrants: list[Entrant]
    commanded: Mapping[float, list[list[Attempt]]]
    """What the command tried, by tolerance and seed."""

    def worst(self, near: bool) -> Point:
        """What hypervolumes count from."""
        accuracy = fmean(point.accuracy for point in self.bare) - NEAR if near else CHANCE
        return Point(accuracy, fmean(point.wire_bytes for point in self.bare))

    def best_three(self, near: bool) -> float:
        """The most that three points of the search's front come to, chosen with all results known."""
        taus, trained = self.fronts[METHOD].taus, self.fronts[METHOD].trained
        chosen = combinations(range(len(taus)), min(3, len(taus)))
        sets = ([[points[i] for i in three] for points in trained] for three in chosen)
        return max(fmean(self.shares(item, near)) for item in sets)

    def shares(self, sets: Sequence[Sequence[Point]], near: bool) -> list[float]:
        """Hypervolumes by seed, as percentages of the mean of the reference's."""
        worst = self.worst(near)
        whole = fmean(hypervolume(points, worst) for points in self.fronts[METHOD].trained)
        return [100 * hypervolume(points, worst) / whole for points in sets]


def main(arguments: Sequence[str]) -> int:
    options = read_options("choose.auto_threshold", "Thresholds that find themselves.", arguments)
    pairs = PAIRS[:2] if options.quick else PAIRS
    seeds = SEEDS[:1] if options.quick else SEEDS
    folder = FOLDER.with_name(f"{FOLDER.name}_quick") if options.quick else FOLDER
    trials = 6 if options.quick else TRIALS
    everything = searches(pairs, trials)
    run_searches(folder, everything)
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(folder)
    trainings = trainings_in(folder)
    judged = [_judge(pair, folder, trainings, seeds, everything) for pair in pairs]
    tables = [
        _shares_table(judged, near=False),
        _shares_table(judged, near=True),
        command_table(
            {
                (judgement.pair.name, asked): judgement.commanded[asked]
                for judgement in judged
                for asked in ASKED
            }
        ),
    ]
    publish("auto_threshold", options, INTRODUCTION, tables, PLACE)
    return 0


INTRODUCTION = (
    f"Two simulated workers, batches of 64, SGD with momentum 0.9; `{METHOD.format(tau='...')}` unless "
    f"another rule is named. The reference is `taugrad search` with {TRIALS} trials of one tau for all "
    "layers. At most 8 points of its front are trained again, with the same seeds as all other methods, "
    "which are not those of the search. `search, corrected` is the same with momentum in the compressor, as "
    f"in `taugrad auto`: `{CORRECTED.format(tau='...')}`. A set of trainings is judged by its hypervolume: "
    "accuracy above a lower limit, times orders of magnitude of wire bytes below those without compression. "
    "Searches and trainings may be from earlier starts; the load is that of the last one."
)


def _judge(
    pair: Pair,
    folder: Path,
    trainings: Trainings,
    seeds: Sequence[int],
    everything: Sequence[Searched],
) -> Judged:
    """Trains what is missing of a pair."""
    taking_part = entrants(pair)
    by_method = {search.method: search for search in everything if search.pair == pair}
    searched, taus = dict[str, list[Point]](), dict[str, list[float]]()
    for method in SEARCHES:
        baseline, trials = read_search(results_of(folder, by_method[method]))
        searched[method] = [point for _, point in trials]
        taus[method] = thinned(front_of(trials), Point(CHANCE, baseline.wire_bytes))
    fronts = {method: [method.format(tau=repr(tau)) for tau in taus[method]] for method in SEARCHES}
    lines = ["none", *(line for front in fronts.values() for line in front)]
    lines += [line for entrant in taking_part for line in entrant.settings]
    say(f"{pair.name}: {len(lines)} settings, {len(seeds)} seeds")
    trainings.train([_spec(pair, line, seed) for line in lines for seed in seeds])

    def by_seed(settings: Sequence[str]) -> list[list[Point]]:
        return [[Point(**trainings.of(_spec(pair, line, seed))) for line in settings] for seed in seeds]

    return Judged(
        pair=pair,
        bare=[points[0] for points in by_seed(["none"])],
        fronts={
            method: Front(taus[method], by_seed(fronts[method]), searched[method]) for method in SEARCHES
        },
        settings={entrant.name: by_seed(entrant.settings) for entrant in taking_part},
        entrants=taking_part,
        commanded={
            asked: commanded([_spec(pair, METHOD.format(tau=1), seed) for seed in seeds], asked, trainings)
            for asked in ASKED
        },
    )


def _spec(pair: Pair, line: str, seed: int) -> RunSpec:
    return RunSpec.model_validate(pair.tree(line, seed=seed))


def _shares_table(judged: Sequence[Judged], *, near: bool) -> Table:
    """Everybody's hypervolume with all of its settings."""
    names = [entrant.name for entrant in judged[0].entrants]
    columns = ("pair", "as searched", "best three", "search, corrected", *names)
    rows, sums = list[tuple[str, ...]](), list[list[float]]()
    for judgement in judged:
        searched = judgement.shares([judgement.fronts[METHOD].searched], near)
        corrected = judgement.shares(judgement.fronts[CORRECTED].trained, near)
        shares = [corrected, *(judgement.shares(judgement.settings[name], near) for name in names)]
        best = judgement.best_three(near)
        rows.append((judgement.pair.name, _interval(searched), f"{best:.1f}", *map(_interval, shares)))
        sums.append([best, *map(fmean, shares)])
    means = [fmean(column) for column in zip(*sums, strict=True)]
    rows.append(("mean", "", *(f"{mean:.1f}" for mean in means)))
    default = 2 + names.index(DEFAULT)
    rivals = [2 + names.index(rival) for rival in RIVALS]
    beaten = [all(item[default] > item[rival] for rival in rivals) for item in sums]
    reached = [item[default] >= GOAL for item in sums]
    what = (
        f"accuracy counts from {100 * NEAR:g} points below no compression"
        if near
        else f"accuracy counts from chance, {100 * CHANCE:g}%"
    )
    notes = (
        "% of the reference's hypervolume: mean (least to most) of the seeds. `as searched` is the search's "
        f"own {TRIALS} trials with its own seed: the best of many, luck included. `best three`: of the "
        "search's front, chosen with all results known. A search has many trainings, the others have three.",
        f"{DEFAULT}: {sum(reached)} of {len(judged)} pairs at {GOAL:g}% or more, {means[default]:.1f}% on "
        f"average, {100 * means[default] / means[1]:.1f}% of what the search with momentum in the compressor "
        f"comes to; better than DL4J's and SIDCo's rules on {sum(beaten)} of {len(judged)}.",
    )
    return Table(f"Three trainings: {what}", columns, rows, notes)


def _interval(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
