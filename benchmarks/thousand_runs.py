"""Dashboards of an experiment of a thousand runs: how long they take to be made, and to open in Chromium.

    python benchmarks/thousand_runs.py [--quick] [--write]

The runs have real specs and curves of the shape that training gives, at 40 iterations each; writing them into
a database takes some minutes, once (build/thousand_runs). Needs Chromium and playwright.
"""

import itertools
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
from report import Spread, Table, load, number, publish, read_options
from trainings import BUILD

from taugrad.dashboards import report, views
from taugrad.dashboards.prepare import prepare
from taugrad.dashboards.serving import mlflow_server
from taugrad.dashboards.shared_view import view_url
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import finish_run, open_client, start_run

RUNS, FEW = 1000, 24
SEEDS = 5
ITERATIONS, EVALUATIONS = 40, 10
PARAMETERS, WORKERS = 431_080, 2
EXPERIMENT = "thousand"
OPENINGS = 5
GOAL_S = 5.0
LINES = ("wgt(tau={})", "bgt(tau={})", "qgt(tau={})", "strom(tau={}) | golomb_rice", "topk({})")

INTRODUCTION = (
    "An experiment of {runs:,} runs in MLflow's sqlite database: {settings} settings of five rules with "
    "{seeds} seeds each, and runs without compression; {points:,} points of metrics, {megabytes} MB. Pages "
    "are opened in Chromium, 1500 pixels wide and 1000 high, each time in a new browser. MLflow's view "
    "counts as open when all charts in sight are drawn with their points, the report when all of its "
    "pictures are."
)


def main(arguments: Sequence[str]) -> int:
    options = read_options("thousand_runs.py", __doc__.partition("\n")[0], arguments)
    before, folder = load(), BUILD / f"thousand_runs{'-quick' if options.quick else ''}"
    count = FEW if options.quick else RUNS
    client, experiment_id = experiment(folder, count)
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # five processes, which no view needs
    with tempfile.TemporaryDirectory(prefix="taugrad-") as temporary:
        made = Path(temporary)
        prepared = timed(lambda: prepare(client, experiment_id))
        again = timed(lambda: prepare(client, experiment_id))
        written = timed(lambda: report.write_report(client, EXPERIMENT, experiment_id, made, None))
        with mlflow_server(client.tracking_uri, made / "mlflow.log") as server:
            url = view_url(server.url, experiment_id, views.COMPARISON_KEY)
            plain = f"{server.url}/#/experiments/{experiment_id}/runs"
            openings = {
                "MLflow's own table of runs": opened(
                    plain, "document.querySelectorAll('.ag-row, [role=row]').length > 5"
                ),
                "the prepared view in MLflow": opened(url, in_sight()),
                "the report": opened((made / "report.html").as_uri(), PICTURES),
                "the report's interactive charts": opened(
                    (made / "interactive.html").as_uri(),
                    "document.querySelectorAll('.js-plotly-plot .trace').length > 10",
                ),
            }
        sizes = {
            "the report": (made / "report.html").stat().st_size,
            "the report's interactive charts": (made / "interactive.html").stat().st_size,
        }
    tables = [
        Table(
            "Opened in Chromium",
            ("page", "s, median (10% to 90%)", f"goal {GOAL_S:g} s", "MB"),
            [
                (
                    name,
                    str(Spread.of(seconds)),
                    "met" if Spread.of(seconds).middle <= GOAL_S else "missed",
                    number(sizes[name] / 1e6) if name in sizes else "",
                )
                for name, seconds in openings.items()
            ],
        ),
        Table(
            "Made by taugrad",
            ("command", "s"),
            [
                ("taugrad dashboard, the first time", number(prepared)),
                ("taugrad dashboard, again", number(again)),
                ("taugrad report", number(written)),
            ],
            ("Without the start of Python and the opening of the database.",),
        ),
    ]
    publish("thousand_runs", options, introduction(folder, count), tables, before)
    return 0


def introduction(folder: Path, count: int) -> str:
    """What the database holds."""
    import sqlite3

    with sqlite3.connect(folder / "mlflow.db") as database:
        points = database.execute("select count(*) from metrics").fetchone()[0]
    return INTRODUCTION.format(
        runs=count,
        settings=-(-count // SEEDS),
        seeds=SEEDS,
        points=points,
        megabytes=number((folder / "mlflow.db").stat().st_size / 1e6),
    )


def experiment(folder: Path, count: int) -> tuple[MlflowClient, str]:
    """The database, written where it is not there as a whole."""
    whole = folder / "whole"
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        client = open_client(f"sqlite:///{folder}/mlflow.db")
        for done, (spec, density) in enumerate(itertools.islice(settings(), count), start=1):
            write_run(client, spec, density)
            if done % 100 == 0:
                print(f"  {done} of {count} runs written", flush=True)
        whole.touch()
    client = open_client(f"sqlite:///{folder}/mlflow.db")
    found = client.get_experiment_by_name(EXPERIMENT)
    assert found is not None
    return client, found.experiment_id


def settings() -> Iterator[tuple[RunSpec, float]]:
    """Specs, each with the share of elements that it sends."""
    yield from ((spec_of("none", seed), 1.0) for seed in range(SEEDS))
    for step in itertools.count():
        for line in LINES:
            share = 10 ** (-0.3 - 3 * (step * 0.381966 % 1))
            value = f"{share if line.startswith('topk') else 1e-3 / share:.4g}"
            yield from ((spec_of(line.format(value), seed), share) for seed in range(SEEDS))


def spec_of(line: str, seed: int) -> RunSpec:
    """A run of the experiment."""
    fields = {"experiment": EXPERIMENT, "compressor": line, "seed": seed, "training": {"epochs": EVALUATIONS}}
    return RunSpec.model_validate(fields)


def write_run(client: MlflowClient, spec: RunSpec, density: float) -> None:
    """One run, finished."""
    run_id = start_run(client, spec)
    random = np.random.default_rng([spec.seed, int(1e9 * density)])
    elements = PARAMETERS * WORKERS
    wire_total, points = 0.0, list[Metric]()
    best = 0.975 - 0.02 * abs(math.log10(density) + 1) / 3 + random.normal(0, 0.001)
    for i in range(1, ITERATIONS + 1):
        share = 1.0 if density == 1 else min(0.9, density * float(np.exp(random.normal(0, 0.3))))
        wire = share * elements * 9 / 8
        wire_total += wire
        values = {
            names.TRAIN_LOSS: 2.3 * math.exp(-4 * i / ITERATIONS) * float(np.exp(random.normal(0, 0.2))),
            names.COMM_FRACTION: share,
            names.COMM_WIRE_BYTES: wire,
            names.COMM_WIRE_MB_TOTAL: wire_total / 1e6,
            names.COMM_BITS_PER_PARAM: 8 * wire / elements,
            names.COMM_COMPRESSION_RATIO: 4 * elements / wire,
            names.COMM_RESIDUAL_RMS: 1e-3,
            names.TIME_COMPUTE: 0.017,
            names.TIME_COMPRESS: 0.002,
            names.TIME_WAIT: 0.003,
            names.TIME_STEP: 0.0235,
            names.NET_MBIT: 8 * wire / WORKERS / 0.008 / 1e6,
        }
        if i % (ITERATIONS // EVALUATIONS) == 0:
            values |= {
                names.EVAL_ACCURACY: best - 0.05 * (1 - i / ITERATIONS),
                names.EVAL_LOSS: 0.1,
                names.EVAL_EXAMPLES: 1000.0,
                names.EPOCH: i * EVALUATIONS / ITERATIONS,
                names.EPOCH_BITS_PER_PARAM: 8 * wire / elements,
                names.TOTAL_WIRE_GB: wire_total / 1e9,
                names.TOTAL_WIRE_MB_LOG10: math.log10(wire_total / 1e6),
                names.TOTAL_PAPER_GB: wire_total / 1e9,
                names.TOTAL_FRACTION: density,
                names.TOTAL_COMPRESSION_RATIO: 4 * i * elements / wire_total,
                names.TOTAL_ACCURACY_PER_GB: 100 * best / (wire_total / 1e9),
                names.TOTAL_SECONDS: 0.03 * i,
            }
        points += [Metric(name, value, 1_700_000_000_000 + i, i) for name, value in values.items()]
    for start in range(0, len(points), 1000):
        client.log_batch(run_id, metrics=points[start : start + 1000])
    finish_run(client, run_id, "FINISHED")


PICTURES = "[...document.images].length > 5 && [...document.images].every(i => i.complete && i.naturalWidth)"


def in_sight() -> str:
    """Whether all charts in sight of MLflow's view have their points; a JavaScript expression."""
    return (
        "(() => { const seen = [...document.querySelectorAll('.js-plotly-plot')]"
        ".filter(p => p.getBoundingClientRect().top < innerHeight);"
        " return seen.length >= 2 && seen.every(p => p.data.some(t => (t.x || []).length > 1)); })()"
    )


def opened(url: str, condition: str) -> list[float]:
    """Seconds from a page's address to its being drawn, several times.

    Args:
        url: the page.
        condition: a JavaScript expression that says that it is.
    """
    seconds = []
    for _ in range(OPENINGS):
        with chromium() as page:
            begun = time.perf_counter()
            page.goto(url)
            page.wait_for_function(condition, polling=50)
            # What was decided is drawn with the next frame.
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            seconds.append(time.perf_counter() - begun)
    return seconds


@contextmanager
def chromium() -> Iterator[Any]:
    """A fresh page."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("TAUGRAD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1500, "height": 1000})
            page.set_default_timeout(120_000)
            yield page
        finally:
            browser.close()


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
