"""A run of 200,000 iterations: its memory, its step time, and how MLflow's store answers while it grows.

    python -m benchmarks.platform.long_run [--quick] [--write]

`taugrad train` with two simulated workers and a small model, metrics in sqlite. MLflow's server runs beside
it, as it does for who looks at the run, and is asked what its pages ask.
"""

import json
import re
import shutil
import sqlite3
import sys
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client

from ..harness.report import Table, load, number, publish, read_options
from .faults.commands import Command, clean_environment
from .faults.mlflow_server import Server

BUILD = Path(__file__).resolve().parents[2] / "build"
ITERATIONS, FEW = 200_000, 4_000
PARTS = 10
"""Of the run, which figures are given for."""
SAMPLE_S = 2.0
ASKED = 3
"""Times that each question is asked; the middle counts."""
SPEC = """experiment: long
name: long
data: {{kind: digits}}
model: {{kind: mlp, widths: [16]}}
training: {{iterations: {iterations}, evaluate_every: {every}, batch_size: 16, optimizer: {{lr: 0.01}}}}
compressor: "strom(tau=0.02) | golomb_rice"
sync: {{mode: simulated}}
"""
PROCESSES = {
    "RayTrainWorker": "worker",
    "TrainController": "Ray Train's controller",
    "RunStatus": "run status",
}

INTRODUCTION = (
    "`taugrad train`, two simulated workers, an MLP of {parameters} parameters on digits, batches of 16, "
    "{iterations:,} iterations with every metric of every iteration in MLflow's sqlite database. Memory is "
    "the resident set, sampled every {sample:g} s; step times are the run's own metric `time/step_s`."
)


@dataclass
class Watched:
    """What was seen of a run while it went on."""

    evaluated: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many evaluations there were."""
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By process, when, and MB."""
    answers: list["Answers"] = field(default_factory=list)


@dataclass(frozen=True)
class Answers:
    """How the store answered at one time."""

    stored: int
    """The last iteration in it."""
    behind: int
    """Iterations that were trained and not there yet."""
    megabytes: float
    milliseconds: Mapping[str, float]
    """By question."""


def main(arguments: Sequence[str]) -> int:
    options = read_options("platform.long_run", __doc__.partition("\n")[0], arguments)
    before, iterations = load(), FEW if options.quick else ITERATIONS
    folder = BUILD / f"long_run{'-quick' if options.quick else ''}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    every = iterations // (10 * PARTS)
    (folder / "spec.yaml").write_text(SPEC.format(iterations=iterations, every=every))
    database = folder / "mlflow.db"
    open_client(f"sqlite:///{database}")
    server = Server(folder, clean_environment(), database.name)
    server.start()
    try:
        command = Command.start(["train", "spec.yaml"], folder, clean_environment(), folder / "output.txt")
        try:
            seen = watch(command, database, server.uri, iterations // PARTS)
        finally:
            command.kill()
        if command.code:
            print(command.said[-3000:], file=sys.stderr)
            return 1
        seen.answers.append(ask(database, server.uri, iterations))
    finally:
        server.kill()
    steps = step_times(database)
    introduction = INTRODUCTION.format(
        parameters=16 * 64 + 16 + 160 + 10, iterations=iterations, sample=SAMPLE_S
    )
    publish(
        "long_run",
        options,
        introduction,
        [memory_table(seen), step_table(steps), store_table(seen, database)],
        before,
    )
    return 0


def watch(command: Command, database: Path, server: str, part: int) -> Watched:
    """Looks at a run until it ends, and asks the store each time that so many iterations are done."""
    seen = Watched()
    asked = 0
    while command.runs:
        now, done = time.monotonic(), max(map(int, re.findall(r"iteration +(\d+)/", command.said)), default=0)
        seen.evaluated.append((now, done))
        for name, megabytes in sizes(command.family()).items():
            seen.memory[name].append((now, megabytes))
        if done // part > asked:
            asked = done // part
            with suppress(OSError, sqlite3.Error):
                seen.answers.append(ask(database, server, done))
            print(f"  {done:,} iterations", flush=True)
        time.sleep(SAMPLE_S)
    return seen


def sizes(processes: Sequence[psutil.Process]) -> dict[str, float]:
    """MB of the processes that are ours."""
    found: dict[str, float] = {}
    for place, each in enumerate(processes):
        with suppress(psutil.Error):
            line = " ".join(each.cmdline()) or each.name()
            name = (
                "command" if place == 0 else next((n for part, n in PROCESSES.items() if part in line), None)
            )
            if name:
                found[name] = found.get(name, 0) + each.memory_info().rss / 1e6
    return found


def ask(database: Path, server: str, trained: int) -> Answers:
    """Asks the server what its pages ask, about the only run of the experiment."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        experiment = store.execute("select experiment_id from experiments where name = 'long'").fetchone()[0]
        run = store.execute("select run_uuid from runs where experiment_id = ?", (experiment,)).fetchone()[0]
        stored = store.execute(
            "select step from latest_metrics where run_uuid = ? and key = ?", (run, names.COMM_FRACTION)
        ).fetchone()
    history = f"get-history-bulk-interval?run_ids={run}&max_results=320&metric_key="
    key = urllib.parse.quote(names.TRAIN_LOSS, safe="")
    questions = {
        "table of runs": ("runs/search", {"experiment_ids": [str(experiment)], "max_results": 100}),
        "page of the run": (f"runs/get?run_id={run}", None),
        "one chart of it": (f"metrics/{history}{key}", None),
        "one metric, every point": (
            f"metrics/get-history?run_id={run}&metric_key={key}&max_results=25000",
            None,
        ),
    }
    times = {}
    for name, (path, body) in questions.items():
        address = f"{server}/ajax-api/2.0/mlflow/{path}"
        times[name] = float(np.median([1000 * seconds_of(address, body) for _ in range(ASKED)]))
    there = int(stored[0]) if stored else 0
    megabytes = sum(each.stat().st_size for each in database.parent.glob("mlflow.db*")) / 1e6
    return Answers(there, max(0, trained - there), megabytes, times)


def seconds_of(address: str, body: Mapping[str, object] | None) -> float:
    """How long a question takes."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    begun = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()
    return time.perf_counter() - begun


def step_times(database: Path) -> np.ndarray:
    """float64 [iterations], seconds; raises ValueError where one is missing or there twice."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        rows = store.execute(
            "select step, value from metrics where key = ? order by step", (names.TIME_STEP,)
        ).fetchall()
    steps = np.array([step for step, _ in rows])
    if not np.array_equal(steps, np.arange(1, len(steps) + 1)):
        raise ValueError(f"{len(steps)} points of {names.TIME_STEP} with holes or doubles")
    return np.array([value for _, value in rows])


def memory_table(seen: Watched) -> Table:
    """MB by process, over the run."""
    times = np.array([at for at, _ in seen.evaluated])
    done = np.array([iterations for _, iterations in seen.evaluated])
    last = int(done[-1])
    marks = [last * part // 4 for part in (1, 2, 3, 4)]
    rows = []
    for name, samples in seen.memory.items():
        at, megabytes = np.array(samples).T
        iterations = np.interp(at, times, done)
        shown = [f"{megabytes[np.argmax(iterations >= mark)]:.0f}" for mark in marks]
        second = iterations >= last / 2
        slope = np.polyfit(iterations[second], megabytes[second], 1)[0] if second.sum() > 2 else np.nan
        rows.append((name, *shown, f"{megabytes.max():.0f}", f"{1e5 * slope:+.1f}"))
    columns = ("process", *(f"at {mark:,}" for mark in marks), "most", "MB per 100,000 iterations")
    return Table("Memory, MB", columns, rows, ("The slope is that of the second half.",))


def step_table(seconds: np.ndarray) -> Table:
    """Step times by parts of the run."""
    parts = [1000 * np.sort(part) for part in np.array_split(seconds, PARTS)]
    edges = np.linspace(0, len(seconds), PARTS + 1).astype(int)
    rows = [
        (
            f"{low + 1:,} to {high:,}",
            number(float(np.median(part))),
            number(float(part[int(0.99 * len(part))])),
        )
        for part, low, high in zip(parts, edges, edges[1:], strict=False)
    ]
    drift = float(np.median(parts[-1]) / np.median(parts[1]) - 1)
    note = f"From the second part to the last one the median changed by {100 * drift:+.1f}%."
    return Table("Step time, ms", ("iterations", "median", "99th percentile"), rows, (note,))


def store_table(seen: Watched, database: Path) -> Table:
    """How the store answered."""
    questions = list(seen.answers[-1].milliseconds)
    rows = [
        (
            f"{each.stored:,}",
            f"{each.behind:,}",
            f"{each.megabytes:,.0f}",
            *(number(each.milliseconds[question]) for question in questions),
        )
        for each in seen.answers
    ]
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        points = store.execute("select count(*) from metrics").fetchone()[0]
    columns = ("iterations stored", "not stored yet", "MB", *(f"{each}, ms" for each in questions))
    notes = (
        f"{points:,} points in the end. The last line is of after the run. Questions go to MLflow's server "
        "by HTTP; a chart has 320 points, as MLflow's own.",
    )
    return Table("The store", columns, rows, notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
