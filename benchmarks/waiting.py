"""How long a user waits: until the first iteration, for a second run, and for a refusal.

    python benchmarks/waiting.py [--quick] [--write]

Whole commands in an empty folder, as a shell starts them. Each start is a new process with a Ray of its own;
where its time goes is in the artifact `stages.csv`, which every `taugrad train` leaves.
"""

import csv
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from report import Options, Table, load, number, publish, read_options, verdict

FIRST_ITERATION_S, FURTHER_RUN_S, REFUSAL_S = 15.0, 25.0, 5.0
"""Goals: seconds to the first iteration; of a second run with its two epochs; to a refusal."""
QUICKSTART = Path(__file__).resolve().parent.parent / "experiments" / "quickstart"
TIMEOUT_S = 900
MISLEADING = ("RAY_", "MLFLOW_", "TAUGRAD_")

INTRODUCTION = (
    "`taugrad train` with two specs of the quickstart (LeNet, 5,000 MNIST digits, 2 workers) for two "
    "epochs, in an empty folder; {starts} starts, medians in seconds. One start before them is not counted, "
    "because it may compile numba's kernels and Python's modules. Refusals: the whole command, from the "
    "shell to its end."
)


@dataclass(frozen=True)
class Stage:
    """A row of `stages.csv`."""

    name: str
    began_s: float
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Measures and publishes."""
    options = read_options("waiting.py", __doc__.partition("\n")[0], arguments)
    before, starts = load(), 1 if options.quick else 3
    if not options.quick:
        stages_of_a_start(("2-wgt.yaml",))
    specs = ("2-wgt.yaml",) if options.quick else ("2-wgt.yaml", "3-bgt.yaml")
    runs = [stages_of_a_start(specs) for _ in range(starts)]
    tables = [start_table(runs), refusal_table(options)]
    publish("waiting", options, INTRODUCTION.format(starts=starts), tables, before)
    return 0


def stages_of_a_start(specs: Sequence[str]) -> list[Stage]:
    """One command in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
        paths = [str(QUICKSTART / name) for name in specs]
        done = taugrad(Path(folder), ["train", *paths, "--training.epochs", "2"])
        if done.returncode != 0:
            raise RuntimeError(f"taugrad train ended with {done.returncode}: {done.stderr[-2000:]}")
        (path,) = Path(folder).glob("mlruns/**/stages.csv")
        with path.open(newline="") as file:
            return [
                Stage(row["stage"], float(row["began_s"]), float(row["seconds"]))
                for row in csv.DictReader(file)
            ]


def start_table(runs: Sequence[Sequence[Stage]]) -> Table:
    """Where the time of the first run goes, and what later ones take."""
    names = [stage.name for stage in runs[0]]
    if any([stage.name for stage in run] != names for run in runs):
        raise RuntimeError("the starts went through different stages")
    trains = [i for i, name in enumerate(names) if name == "training"]
    rows = []
    for i, name in enumerate(names):
        began, seconds = [run[i].began_s for run in runs], [run[i].seconds for run in runs]
        rows.append((name, number(median(began)), number(median(seconds)), ""))
    first = median(run[trains[0]].began_s for run in runs)
    rows.append(("first iteration done after", number(first), "", verdict(first, FIRST_ITERATION_S)))
    if len(trains) > 1:
        further = median(
            run[trains[1]].began_s + run[trains[1]].seconds - run[trains[0] + 1].began_s for run in runs
        )
        rows.append(("second run with its two epochs", "", number(further), verdict(further, FURTHER_RUN_S)))
    return Table("From the command to the first iteration", ("stage", "began s", "took s", "goal"), rows)


def refusal_table(options: Options) -> Table:
    """How long it takes until a command says that something is not there."""
    rows = []
    with silent_port() as silent, closed_port() as closed, tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "file").touch()
        spec = str(QUICKSTART / "2-wgt.yaml")
        database = f"sqlite:///{here}/file/x.db"
        dead, mute = f"http://127.0.0.1:{closed}", f"http://127.0.0.1:{silent}"
        cases: list[tuple[str, list[str], dict[str, str]]] = [
            ("train, no MLflow server there", ["train", spec], {"MLFLOW_TRACKING_URI": dead}),
            ("train, MLflow's server is silent", ["train", spec], {"MLFLOW_TRACKING_URI": mute}),
            ("report, no MLflow server there", ["report", "x", "-o", "r"], {"MLFLOW_TRACKING_URI": dead}),
            ("report, MLflow's server is silent", ["report", "x", "-o", "r"], {"MLFLOW_TRACKING_URI": mute}),
            (
                "train, no database can be made there",
                ["train", spec],
                {"MLFLOW_TRACKING_URI": database},
            ),
            ("train, --storage cannot be written", ["train", spec, "--storage", f"{here}/file/x"], {}),
            ("train --resume, no such run", ["train", "--resume", "nosuchrun"], {}),
            ("report, no such experiment", ["report", "nosuchone", "-o", "r"], {}),
            ("train, no cluster at RAY_ADDRESS", ["train", spec], {"RAY_ADDRESS": f"127.0.0.1:{closed}"}),
            ("train, RAY_ADDRESS is silent", ["train", spec], {"RAY_ADDRESS": f"127.0.0.1:{silent}"}),
            ("submit, no cluster there", ["submit", spec, "--address", dead], {}),
            ("submit, the cluster is silent", ["submit", spec, "--address", mute], {}),
        ]
        if options.quick:
            cases = cases[:1]
        for what, command, variables in cases:
            started = perf_counter()
            done = taugrad(QUICKSTART.parent.parent if command[0] == "submit" else here, command, variables)
            seconds = perf_counter() - started
            lines = len(done.stderr.strip().splitlines())
            rows.append(
                (what, number(seconds), f"{done.returncode}", f"{lines}", verdict(seconds, REFUSAL_S))
            )
    return Table("Until a command says what is wrong", ("command", "s", "exit code", "lines", "goal"), rows)


def taugrad(
    folder: Path, arguments: Sequence[str], variables: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs a command as a user's shell would, without variables that lead elsewhere."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(MISLEADING)}
    return subprocess.run(
        [sys.executable, "-m", "taugrad", *arguments],
        cwd=folder,
        env=ours | (variables or {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # and no listen: connections are refused
        yield holder.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
