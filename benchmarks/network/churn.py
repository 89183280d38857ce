"""Members that come and go: what the others learn meanwhile, and how long it takes to leave and to join.

    python -m benchmarks.network.churn [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root. Can be stopped and continued:
build/churn.jsonl has the trainings that were done.
"""

import os
from collections.abc import Mapping, Sequence
from statistics import mean, median

from taugrad.platform.models.gpt import GptNetwork
from taugrad.platform.spec.models import Gpt

from ..harness.report import Options, Report, Table, number, run_benchmark
from ..harness.trainings import Kept, kept_in
from .churn_cases import CASES, FULL, LINK, QUICK, SLOW_LINK, TOGETHER, Scale, join, records_of
from .churn_hosts import Hosts
from .churn_member import CONTEXT, Settings
from .churn_record import Record

Records = Mapping[str, Sequence[Record]]
_PRIORITY = -10
"""Hosts sleep most of the time; when they want to compute, nothing else on this machine delays them."""
INTRODUCTION = (
    "Local steps with members, {hosts} hosts with links of {link}, a GPT of 4 x 128, {every} steps a round. "
    "A step takes {pace:g} s: computing, and sleep for the rest, so that hosts, which share this machine's "
    "processors, do not slow one another down. An exchange comes on top. {together} trainings ran at a time, "
    "before whatever else ran (priority {priority}). "
    "With kills, one host after the other gets a kill -9, every {kill:g} s, and is started again after "
    "{back:g} s, with its checkpoint of its last round. 2 to 6 to 3: two members begin, four join from a "
    "quarter of the time on, and three leave on a notice (SIGTERM) from three quarters on. Fixed group: "
    "local steps without members; as soon as the killed one is back, a supervisor starts all again from "
    "their checkpoints of the last round. DDP: torchrun's elastic launch, `--nnodes=1:{hosts}` and "
    "else its defaults, with its store in a process that nobody kills (and "
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it all hang once the host of rank 0 has died); gradients "
    "in 16 bits, checkpoints every {checkpoint:g} s, in a folder of all. Its exchange is part of the "
    "{pace:g} s, as if all of it were hidden behind computing."
)


def learned(records: Records, scale: Scale) -> Table:
    """Examples and loss."""
    names = [name for name in records if CASES[name].whole]
    rate = rate_of(records)
    equal = min(run.examples() for name in names if CASES[name].kind is Hosts for run in records[name])
    rows = []
    for name in names:
        runs, case = records[name], CASES[name]
        seconds, examples = sum(run.seconds for run in runs), sum(run.examples() for run in runs)
        possible = rate * sum(run.member_seconds() for run in runs)
        at_pace = scale.hosts * Settings.batch / scale.pace_s * seconds
        losses = [run.loss_at(equal) for run in runs if run.examples() >= equal]
        rounds = [len(times) for run in runs for times in run.rounds().values()]
        joining = [joined["at"] - start for run in runs for start, _, joined, _ in run.joins()]
        rows.append(
            (
                name, str(len(runs)), f"{runs[0].seconds:.0f}", number(examples / seconds),
                number(100 * examples / possible) if case.kind is Hosts else "-",
                number(100 * examples / at_pace) if not case.hosts else "-",
                number(mean(rounds)) if case.kind is Hosts else "-",
                spread(losses) if losses else "-",
                number(mean(joining)) if joining else "-",
            )
        )  # fmt: skip
    columns = (
        *("training", "runs", "seconds", "examples/s", "% of members in", "% of all hosts"),
        *("updates a round", f"loss after {equal:,.0f} examples", "start to in, s"),
    )
    most = 100 - 100 * scale.back_s / scale.kill_s / scale.hosts
    notes = (
        "Examples: those in the agreed weights. % of members in: of what undisturbed members learn in the "
        "time in which members were in. % of all hosts: of what all hosts learn all the time at this pace if "
        f"nothing is exchanged; of the undisturbed training's, kills leave {number(most)}% at most. "
        "Updates a round: fewer than members where these take turns, since a round need not wait for all. "
        "Loss: the mean of the last fifth of these examples; in brackets the least and the greatest of the "
        "runs, each with weights and examples of its own; - where fewer were learned. Start to in: from the "
        "start of a process until it trains.",
    )
    return Table("Examples learned", columns, rows, notes)


def rate_of(records: Records) -> float:
    """Examples that an undisturbed member learns in a second."""
    runs = records["undisturbed"]
    return sum(run.examples() for run in runs) / sum(run.member_seconds() for run in runs)


def spread(values: Sequence[float]) -> str:
    """The mean, and the least and the greatest."""
    text = number(mean(values))
    return f"{text} ({number(min(values))} to {number(max(values))})" if len(values) > 1 else text


def disturbed(records: Records, scale: Scale) -> Table:
    """Trainings in which something happens to one host, or to the coordinator."""
    rows, rate, last = [], rate_of(records), {scale.hosts - 1}
    for name in ("a quarter of the speed", "a tenth of the link", "suspended", "coordinator killed"):
        (run,) = records[name]
        others = set(range(scale.hosts)) - (set() if name == "coordinator killed" else last)
        examples = run.examples(others) / len(others) / run.seconds
        rows.append(
            (
                name, f"{run.seconds:.0f}", str(len(others)), number(examples), number(100 * examples / rate),
                number(run.examples(last) / run.seconds) if len(others) < scale.hosts else "-",
                *(str(sum(run.last(counted))) for counted in ("joins", "missed", "dropped")),
            )
        )  # fmt: skip
    columns = (
        *("what happens", "seconds", "others", "examples/s of each", "% of undisturbed"),
        *("examples/s of that host", "joins", "rounds without one", "updates lost"),
    )
    (after,) = records["coordinator killed"][0].until_next_round("start", coordinator=True)
    notes = (
        f"One of {scale.hosts} hosts has a quarter of the speed (steps of {4 * scale.pace_s:g} s), or a link "
        f"of {SLOW_LINK}, or is suspended (SIGSTOP) for {scale.suspended_s:g} s. The coordinator is killed, "
        f"and started again {scale.away_s:g} s later; {number(after)} s after that was the next round. Joins "
        f"of all: {scale.hosts} if nobody had to join again. Rounds without one: of all members, rounds that "
        "did not have their update, which is in a later one.",
    )
    return Table("One host, or the coordinator, is disturbed", columns, rows, notes)


def deaths(records: Records) -> Table:
    """From a death until the others go on."""
    seconds = [value for run in records["kills"] for value in run.until_next_round("kill")]
    usual = mean(run.between_rounds() for run in records["undisturbed"])
    row = (str(len(seconds)), number(median(seconds)), number(max(seconds)), number(usual))
    columns = (
        "kills",
        "s to the others' next round, median",
        "at most",
        "s between rounds, undisturbed",
    )
    return Table("From a death to the others' next round", columns, [row])


def joins(records: Records, scale: Scale) -> Table:
    """What a new member takes."""
    rows = []
    for name, (run, *_) in records.items():
        case = CASES[name]
        if case.act is not join:
            continue
        found, (layers, width) = run.joins(), case.model(scale)
        model = GptNetwork(Gpt(layers=layers, width=width), CONTEXT, 256)
        parameters = sum(weights.numel() for weights in model.parameters())
        moments = "moments" in case.settings
        received = [(joined["received"] - begins["received"]) / 1e6 for _, begins, joined, _ in found]
        times = [
            (begins["at"] - start, joined["at"] - begins["at"], exchange["at"] - joined["at"])
            for start, begins, joined, exchange in found
        ]
        rows.append(
            (
                f"{parameters:,}", "yes" if moments else "no",
                number(4 * parameters * (3 if moments else 1) / 1e6), number(mean(received)),
                *(number(mean(column)) for column in zip(*times, strict=True)), number(mean(map(sum, times))),
            )
        )  # fmt: skip
    columns = (
        *("parameters", "moments", "state, MB", "received until in, MB", "Python and torch, s"),
        *("until in, s", "until its first round, s", "together, s"),
    )
    notes = (
        "Two members train, and two new ones without a checkpoint join, one after the other: means of both. "
        "State: the weights, and AdamW's moments. Received: by the host's device, headers included, offers "
        f"of others included. The large model's steps take {2 * scale.pace_s:g} s.",
    )
    return Table("A new member", columns, rows, notes)


def main(options: Options) -> Report:
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    scale = QUICK if options.quick else FULL
    records = records_of(Kept(kept_in("churn", quick=options.quick)), scale)
    introduction = INTRODUCTION.format(
        hosts=scale.hosts, link=LINK, every=Settings.every, pace=scale.pace_s, kill=scale.kill_s,
        back=scale.back_s, together=TOGETHER, priority=_PRIORITY, checkpoint=Settings.checkpoint_s,
    )  # fmt: skip
    tables = [learned(records, scale), disturbed(records, scale), deaths(records), joins(records, scale)]
    return introduction, tables


if __name__ == "__main__":
    run_benchmark(main, network=True)
