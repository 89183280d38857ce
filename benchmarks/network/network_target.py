"""Time to a target over slow links: what people use, and ours, by the wall clock.

    python -m benchmarks.network.network_target [gpt] [late] [slow] [many] [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root. How many steps a synchronous method
takes does not depend on the link: each setting is trained once a seed, its seconds a step are measured on
each link, and times are their product. Can be stopped and continued: benchmarks/kept has what is known, and a
page is made from that. `late` has local steps alone, with fragments and delays; `slow` is over slower links,
with more contenders; `many` has 16 hosts, and begins with the best of `slow`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from math import inf
from statistics import fmean
from textwrap import fill

import numpy as np

from taugrad.compressors.errors import Diverged

from ..harness.in_process import trained
from ..harness.report import RESULTS, Options, Place, Table, credit, number, publish, run_benchmark
from ..harness.trainings import KEPT, Kept, Trainings, kept_in, key_of
from ..harness.workers import train_by
from . import first_screen
from .continuations import continuation_score
from .network_cells import Asked, over
from .target_conditions import condition_tables, more_cores_table
from .target_figure import Minutes, best_of_kinds, draw, recorded, times_table
from .target_search import BEGUN, PATIENCE, SLACK, Search, searched, train_seeds, with_more_hosts
from .target_settings import (
    ATTEMPTS,
    CODED,
    GPT,
    HALF,
    MANY,
    PULSELOCO,
    SLOW,
    SPARSELOCO,
    STROM,
    WORKLOADS,
    Setting,
    Workload,
    coded,
)
from .target_times import (
    CLOSE,
    SKIPPED,
    Row,
    best_peer,
    mean_steps,
    minutes,
    ratio,
    results_of,
    rows_over,
    within,
)

LINKS = ("50mbit,0ms", "50mbit,20ms", "1gbit,20ms")
SLOW_LINKS = ("2mbit,0ms", "2mbit,50ms", "10mbit,0ms", "10mbit,50ms")
MANY_LINKS = ("10mbit,0ms",)
LATE_LINK = "1gbit,0ms"
"""Where late fragments are measured, too."""
QUICK_LINKS = ("1gbit,1ms",)
WHOLE_LINKS = ("50mbit,0ms", "10mbit,0ms")
"""On the first of these the fastest settings are also run whole, by the clock."""
PICTURE = RESULTS.parent / "images" / "time_to_target.png"
PICTURED = ("2mbit,0ms", "10mbit,0ms", "10mbit,50ms", "50mbit,0ms", "50mbit,20ms", "1gbit,20ms")
RATES = ("2 and 10 Mbit/s", "the others")
"""Which of these links are on the pages of `slow` and of `gpt`."""
DOCS = RESULTS.parent
MARKS = {"gpt": "time to target", "slow": "slow links", "many": "many workers"}
"""Where tables of times stand in docs/network.md; the README's is made of the first two."""
CAPTIONS = {
    "gpt": "Four hosts, seconds to the target, each contender at its best on the link: DiLoCo, SparseLoCo "
    "and strom have had the same number of trainings each, the others a search of learning rates. taugrad "
    "has all of them. All settings:",
    "slow": "Four hosts, seconds to the target, each contender at its best of "
    f"{SLOW.contenders[-1].trainings} trainings, with {SLOW.seeds} seeds. All settings:",
    "many": f"{MANY.hosts} hosts, seconds to the target, each contender at its best of {BEGUN} "
    "trainings. All settings:",
}
WHOLE_RUNS = 2
"""Runs are whole for this many of the fastest contenders, and for the best peer."""
INTRODUCTION = (
    "{hosts} hosts, each a network namespace with one thread; all share this machine's {cores} cores. "
    "**Each contender has the same search**, others and ours: {runs}. A search begins with some settings, "
    "the first ones of its table: numbers of local steps, and what was known to be good. Then it takes the "
    "setting that may be the fastest on a link (of those below, in turn) and changes one knob to the next "
    "value: what is the contender's own, the learning rate, the number of local steps. These trainings have "
    "seed 0. What would be slower than {patience} times the contender's best on each link, were bytes free, "
    "ends there, and is not begun where it would be so with {ddp} steps, about those of DDP; none takes "
    "more than {longest} steps (with other seeds, twice as many). DDP, PowerSGD and `linear` have a search "
    "of learning rates alone. Not every knob was changed: the tables have all that was tried. Settings "
    "within {slack} times of a contender's best on a link, by the estimate, are measured there. Their steps "
    "to the target come from {seeds} seeds{fewer}, with simulated workers (PowerSGD: processes), and an "
    "evaluation every {evaluate} steps. 'Continuations' scores the models that came to the target: how many "
    "second halves of held-out texts are likelier after their own first half than after three others (25% by "
    "chance; the least and the most of the seeds). Seconds per step come from the platform's trainer over "
    "gloo on the link, {enough} exchanges or {least} steps after {skipped} steps; the peak rate is of what "
    "host 0 sent in a tenth of a second. What a step computes is the same for all settings with one "
    "optimizer, but takes up to twice as long when others use this machine's cores, too: so each is given "
    "what a worker computed on average over all of them ('ms a step'), in place of what it computed when "
    "this setting was measured ('each time', as it was). **Times are steps x seconds per step**{whole}. "
    "Delays are one way. {more}"
)
NO_AUTO = "What `auto --link` chooses is not measured here."
_CODED = (
    f"{NO_AUTO} 'SparseLoCo, coded' is SparseLoCo's message with positions that are entropy-coded: the same "
    "training, bit for bit. SparseLoCo and DeMo send most of each norm's 128 weights, next to nothing in a "
    "large model. What takes at most {close} times as long as the fastest was measured {times} times, "
    "others once."
).format(close=CLOSE, times=SLOW.times)
SLOW_NOTES = (
    "**What the links stand for**: a billion parameters that compute for a second a step can send, over 200 "
    "Mbit/s or 1 Gbit/s, about as many bits a parameter while a step computes as this GPT (0.8 million "
    "parameters, about 80 ms a step) over 2 or 10 Mbit/s; 50 ms lie between continents. **Three of ours are "
    "attempts** that began when `strom` was not a tenth ahead of every peer over 10 Mbit/s: an outer "
    "optimizer with momentum, other weights of the residual, values of two bits. Each has as many trainings "
    f"as a peer, so that ours together have more. {_CODED}"
)
MANY_NOTES = (
    "**What it stands for**: each worker receives 15 messages. A search begins with the best setting that "
    "the search of four workers came to over this link, then takes the next rarer exchanges, the next higher "
    "rate and exchanges more often (the next lower rate, where each step exchanges). PULSELoCo and the "
    "three attempts of four workers do not take part. A residual's part of 1/4 in a worker's weights, as in "
    f"their mean, is 1/16. {_CODED}"
)
NOTES = {"slow": SLOW_NOTES, "many": MANY_NOTES}


def train(text: str) -> dict[str, float]:
    """Steps to the target, infinity where it is not reached; bytes a step and worker; the model's score."""
    return train_by(_trained, text)


def _trained(text: str) -> dict[str, float]:
    try:
        trainer = trained(text).trainer
    except Diverged:
        return {"steps": float("inf"), "bytes": float("nan"), "score": float("nan")}
    totals = trainer.sync.totals
    return {
        "steps": float(trainer.done) if trainer.reached else float("inf"),
        "bytes": totals.wire_bytes / totals.steps / trainer.sync.workers,
        "score": continuation_score(trainer.model, trainer.data.test),
    }


def steps_table(workload: Workload, settings: Sequence[Setting], trainings: Trainings) -> Table:
    """How many steps each setting takes, and its bytes."""
    rows = []
    for setting in settings:
        results = results_of(workload, setting, trainings)
        steps = [result["steps"] for result in results]
        nbytes = [result["bytes"] for result in results if np.isfinite(result["bytes"])]
        kilobytes = number(fmean(nbytes) / 1000) if nbytes else ""
        scores = [100 * result["score"] for result, count in zip(results, steps, strict=True) if count < inf]
        by_seed = [mean_steps([step]) for step in steps] + [""] * (workload.seeds - len(steps))
        score = f"{fmean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})" if scores else ""
        rows.append((setting.name, mean_steps(steps), within(steps), *by_seed, kilobytes, score))
    columns = (
        *("setting", "steps to the target, mean", "95% interval"),
        *(f"seed {seed}" for seed in range(workload.seeds)),
        *("KB a step and host", "continuations, %"),
    )
    return Table(f"{workload.name}: steps to {_target(workload)}", columns, rows)


def _target(workload: Workload) -> str:
    return f"{workload.metric} {'at most' if workload.metric == 'loss' else 'at least'} {workload.target:g}"


def time_table(workload: Workload, link: str, rows: Sequence[Row], kinds: Mapping[str, str]) -> Table:
    """Each setting's time to the target over a link, the fastest first."""
    half = min(row.seconds for row in rows if kinds[row.setting.name] == HALF.name)
    peer = best_peer(workload, rows, kinds)
    rows = sorted(rows, key=lambda row: row.seconds)
    lines = [
        (
            row.setting.name,
            minutes(row.seconds),
            within(row.steps, row.step_ms.middle / 60_000),
            ratio(half, row.seconds),
            ratio(peer, row.seconds),
            str(row.step_ms),
            ", ".join(map(number, row.means_ms)),
            f"{100 * row.computing_ms / row.step_ms.middle:.0f}",
            "" if row.peak is None else number(row.peak / 1e6),
        )
        for row in rows
    ]
    columns = (
        *("setting", "minutes to the target", "95% interval, by seeds", "times faster than 16 bits"),
        *("than the best peer", "ms a step", "each time", "computing, %", "peak Mbit/s"),
    )
    notes = [_limit(row, peer) for row in rows if row.setting.half and row.seconds == half]
    cells = [cell for row in rows for cell in row.cells]
    notes += sorted({f"Timed on {cell['date']}, {cell['machine']}." for cell in cells if "date" in cell})
    return Table(f"{workload.name} over {link} ({cells[0]['probe']})", columns, lines, tuple(notes))


def _limit(half: Row, peer: float) -> str:
    """How much could be gained, by the part of its time that DDP with 16 bits computes."""
    seconds = fmean(half.steps) * half.computing_ms / 1000
    return (
        f"DDP in 16 bits computes for {number(seconds / 60)} of its minutes. An exchange that takes no time, "
        f"and changes no step, would be {number(half.seconds / seconds)} times faster than 16 bits, and "
        f"{number(peer / seconds)} times faster than the best peer."
    )


def whole_table(
    workload: Workload, rows: Sequence[Row], trainings: Trainings, cells: Kept, link: str
) -> Table:
    """Runs to the target by the clock, beside the product."""
    reached = [row for row in rows if np.isfinite(trainings.of(workload.spec(row.setting, 0))["steps"])]
    asked = [Asked(workload.whole(row.setting, 0), row.setting.half) for row in reached]
    lines = []
    for row, run in zip(reached, over(link, asked, cells), strict=True):
        expected = trainings.of(workload.spec(row.setting, 0))["steps"]
        product = expected * row.step_ms.middle / 1000
        clock = run["seconds"] - run["evaluating"]
        lines.append(
            (
                row.setting.name,
                *(f"{expected:,.0f}", f"{run['steps']:,}"),
                *(number(product / 60), number(clock / 60), f"{clock / product:.2f}"),
            )
        )
    columns = (
        *("setting", "steps, simulated", "steps, whole", "steps x seconds, min"),
        *("by the clock, min", "clock / product"),
    )
    notes = (
        "The fastest contenders here, and the best peer. Seed 0, to the target, evaluations left out on both "
        "sides.",
    )
    return Table(f"{workload.name} over {link}, whole runs", columns, lines, notes)


def introduced(searches: Sequence[Search], more: str) -> str:
    """What was done, in a few sentences, and more that is true of these links."""
    workload = searches[0].workload
    fewer = f" (of what takes at most {CLOSE} times as long as the fastest; of the rest, from one)"
    runs = ", ".join(f"{search.contender.name} {len(search.results)} trainings" for search in searches)
    return INTRODUCTION.format(
        hosts=workload.hosts,
        cores=len(os.sched_getaffinity(0)),
        runs=runs,
        patience=PATIENCE,
        ddp=workload.ddp,
        longest=workload.longest,
        slack=SLACK,
        seeds=workload.seeds,
        fewer=fewer if workload.brief else "",
        whole="" if workload.brief else "; a table has complete runs with their real times",
        evaluate=workload.base["training"]["evaluate_every"],
        enough=workload.rounds,
        least=workload.least_steps,
        skipped=SKIPPED,
        more=more,
    )


def measure(
    searches: Sequence[Search], links: Sequence[str], trainings: Trainings, cells: Kept
) -> tuple[list[Table], Minutes]:
    """What the searches found, over the links.

    Returns:
        The tables, and minutes to the target by link and contender.
    """
    workload = searches[0].workload
    whole = next((link for link in WHOLE_LINKS if link in links), links[0])
    over = {
        link: [(setting, search.contender.name) for search in searches for setting in search.settings(link)]
        for link in links
    }
    if workload.codes_peer:
        for pairs in over.values():
            pairs += [(coded(setting), CODED) for setting, kind in pairs if kind == SPARSELOCO.name]
    kinds = {setting.name: kind for pairs in over.values() for setting, kind in pairs}
    settings = {setting.name: setting for pairs in over.values() for setting, _ in pairs}
    at_first = replace(workload, seeds=1) if workload.brief else workload
    train_seeds(at_first, list(settings.values()), trainings)
    rows = {
        link: rows_over(workload, [setting for setting, _ in over[link]], trainings, cells, link)
        for link in links
    }
    by_kind = {link: best_of_kinds(of_link, kinds) for link, of_link in rows.items()}
    tables = [search.table() for search in searches]
    tables.append(steps_table(workload, list(settings.values()), trainings))
    tables += [time_table(workload, link, of_link, kinds) for link, of_link in rows.items()]
    fastest: dict[str, Row] = {}
    for row in sorted(rows[whole], key=lambda row: row.seconds):
        fastest.setdefault(kinds[row.setting.name], row)
    if workload.brief:
        tables.append(more_cores_table(workload, rows[whole], kinds, whole))
    else:
        peer = best_peer(workload, rows[whole], kinds)
        ranked = enumerate(fastest.values())
        by_clock = [row for place, row in ranked if place < WHOLE_RUNS or row.seconds == peer]
        tables.append(whole_table(workload, by_clock, trainings, cells, whole))
    if workload.conditions:
        tables += condition_tables(workload, fastest, trainings, cells, whole)
    return tables, by_kind


def records(*, quick: bool) -> tuple[Trainings, Kept]:
    """What is known, in files of the repository; a quick run begins with nothing."""
    names = ("network_target", "network_target_cells")
    paths = [kept_in(name, quick=True) if quick else KEPT / f"{name}.jsonl" for name in names]
    return Trainings(paths[0], train, lambda _: 1, key_of), Kept(paths[1])


def searches_of(workload: Workload, links: Sequence[str], trainings: Trainings) -> list[Search]:
    """The searches of a workload's contenders; 16 workers begin with what was the best with four."""
    if workload.name == MANY.name:
        others = {contender.name for contender in (PULSELOCO, *ATTEMPTS)}
        begun = [
            search for search in searched(SLOW, SLOW_LINKS, trainings) if search.contender.name not in others
        ]
        workload = with_more_hosts(workload, begun, links[0])
    return searched(workload, links, trainings)


def main(options: Options) -> None:
    workloads = {name: WORKLOADS[name] for name in options.parts}
    links_of_most = LINKS
    if options.quick:
        workloads, links_of_most = {"gpt": quick(GPT)}, QUICK_LINKS
    trainings, cells = records(quick=options.quick)
    for name, workload in workloads.items():
        links = {"slow": SLOW_LINKS, "many": MANY_LINKS}.get(name, links_of_most)
        searches = searches_of(workload, links, trainings)
        measured_links = (*LINKS, LATE_LINK) if name == "late" else links
        tables, by_link = measure(searches, measured_links, trainings, cells)
        introduction = introduced(searches, NOTES.get(name, NO_AUTO))
        publish(f"network_target_{name}", options, introduction, tables)
        if options.folder == RESULTS:
            if name in CAPTIONS:
                draw_recorded()
                show(name, workload, by_link, credit(options))
        elif options.folder is not None:
            draw(options.folder.with_suffix(".png"), by_link)


def show(name: str, workload: Workload, minutes: Minutes, measured_by: str) -> None:
    """Writes the table of times into the pages; that of `gpt` stands below the picture."""
    page = f"[{workload.name}](results/{date.today().isoformat()}-network_target_{name}.md)"
    text = fill(
        f"{CAPTIONS[name]} {page}. {measured_by}", 115, break_long_words=False, break_on_hyphens=False
    )
    picture = (
        f"![Time to the same accuracy over slow links](images/{PICTURE.name})\n\n" if name == "gpt" else ""
    )
    marks = (f"<!-- {MARKS[name]}: {end} -->" for end in ("begin", "end"))
    Place(DOCS / "network.md", *marks).fill(f"{picture}{shown_times(workload, minutes)}\n\n{text}")
    first_screen.main()


def shown_times(workload: Workload, minutes: Minutes) -> str:
    """The table of times as it stands in the page."""
    return times_table(f"{workload.name}, to {_target(workload)}", minutes)


def draw_recorded() -> None:
    """Draws the picture of the first screen from the newest pages of results."""
    pages = [sorted(RESULTS.glob(f"*-network_target_{part}.md"))[-1] for part in ("slow", "gpt")]
    by_link = {**recorded(pages[0]), **recorded(pages[1])}
    dates = " and ".join(f"{page.name[:10]} ({rates})" for page, rates in zip(pages, RATES, strict=True))
    draw(
        PICTURE,
        {link: by_link[link] for link in PICTURED},
        f"; measured on {dates}, on two kinds of processor",
    )


def quick(workload: Workload) -> Workload:
    """A small model, an easy target, two contenders with two trainings each, two hosts, a few steps."""
    model = {"kind": "gpt", "layers": 1, "heads": 4, "width": 16}
    training = {**workload.base["training"], "iterations": 100, "evaluate_every": 10}
    contenders = (replace(HALF, trainings=2), replace(STROM, starts=STROM.starts[1:2], trainings=2))
    base = {**workload.base, "model": model, "training": training}
    few = {"least_steps": 20, "seeds": 1, "times": 2, "hosts": 2}
    return Workload(workload.name, base, workload.metric, 5.5, 10, contenders, conditions=True, **few)


if __name__ == "__main__":
    run_benchmark(main, parts=[*WORKLOADS], network=True)
