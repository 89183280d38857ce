"""`taugrad train` from spec to store: what a user of the quickstart gets, and runs of other modes.

Where long tests do not run, another run stands for the quickstart's four, which others look at, too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from commands_on_ray import listened_by
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from servers import LOOPBACK
from specs import write_digits
from stored import client_of, named_runs, outcome

from taugrad.platform.tracking.timeline import Timeline

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = sorted((ROOT / "experiments" / "quickstart").glob("*.yaml"))
ITERATIONS, PARAMETERS = 10 * -(-4000 // 64), 431_080
"""Of the quickstart."""
WORKERS = 2
POINTS = 1.5
"""Accuracy may differ from the README's by this many: another CPU adds in another order."""
SHARE = 0.1
"""Bytes and what follows from them may differ by this share of themselves."""
BITS = {"wgt": 32, "bgt": 1, "qgt": 8}
LINKS = {
    "experiment": "links",
    "training": {"epochs": 2, "batch_size": 64, "optimizer": {"lr": 0.1, "momentum": 0}},
    "compressor": "strom(density(0.02)) | golomb_rice",
}
PER_ITERATION = [
    *("train/loss", "comm/fraction", "comm/elements", "comm/paper_bytes", "comm/wire_bytes"),
    *("comm/bits_per_param", "comm/compression_ratio", "time/compute_s", "time/compress_s", "time/wait_s"),
    *("time/decompress_s", "time/step_s", "time/exchange_s", "time/overlap_s", "net/mbit_s"),
    "net/received_mbit_s",
]
ONLY_THRESHOLDED = ["comm/tau", "comm/residual_rms"]


@dataclass
class Trained:
    folder: Path
    experiment: str
    output: str
    listened: frozenset[str]
    client: MlflowClient
    runs: dict[str, Run]
    """By rule."""
    links: dict[str, Run]
    """More of which it is known what went over which link, by name."""
    iterations: int = ITERATIONS
    parameters: int = PARAMETERS

    @property
    def figures(self) -> Path:
        return self.folder / "taugrad-runs" / "figures" / self.experiment

    def series(self, rule: str, metric: str) -> list[float]:
        """A metric's values, after checking that every iteration has exactly one."""
        points = self.client.get_metric_history(self.runs[rule].info.run_id, metric)
        assert sorted(p.step for p in points) == list(range(1, self.iterations + 1)), metric
        return [p.value for p in points]


@pytest.fixture(scope="module")
def trained(one_ray, request):
    """What one command has trained, and where its processes listened meanwhile."""
    folder, client = one_ray.folder, client_of(one_ray.folder)
    if not request.config.getoption("all"):
        one = request.getfixturevalue("undisturbed")
        weights = outcome(folder, "soak", "wgt")["shared"]["agreed"]["model"].values()
        sizes = one.iterations, sum(tensor.numel() for tensor in weights)
        runs = {"wgt": named_runs(client, "soak")["wgt"]}
        return Trained(folder, "soak", one.output, one.listened, client, runs, {}, *sizes)
    syncs = {"async": {"mode": "async"}, "sharded": {"mode": "gradients", "pattern": "sharded"}}
    more = [write_digits(folder, name, **LINKS, sync=sync) for name, sync in syncs.items()]
    command = one_ray.start(["train", *map(str, QUICKSTART), *more], folder, compare=True)
    listened, output = listened_by(command), command.said
    assert command.code == 0, output
    runs, links = named_runs(client, "quickstart"), named_runs(client, "links")
    assert (len(runs), len(links)) == (len(QUICKSTART), len(more))
    return Trained(folder, "quickstart", output, listened, client, runs, links)


def test_nothing_listens_beyond_this_machine(trained):
    assert trained.listened  # Ray's own servers at least
    assert trained.listened <= LOOPBACK


def test_every_iteration_has_every_metric_once(trained):
    for rule in trained.runs:
        for metric in PER_ITERATION + (ONLY_THRESHOLDED if rule != "none" else []):
            assert len(trained.series(rule, metric)) == trained.iterations


def test_iterations_sum_up_to_the_totals(trained):
    for rule, run in trained.runs.items():
        totals = run.data.metrics
        wire, paper = trained.series(rule, "comm/wire_bytes"), trained.series(rule, "comm/paper_bytes")
        elements, fraction = trained.series(rule, "comm/elements"), trained.series(rule, "comm/fraction")
        assert sum(wire) == pytest.approx(totals["total/wire_gb"] * 1e9, abs=0.5)
        assert sum(paper) == pytest.approx(totals["total/paper_gb"] * 1e9, abs=0.5)
        everything = trained.parameters * WORKERS * trained.iterations
        assert sum(elements) / everything == pytest.approx(totals["total/fraction"], rel=1e-12)
        assert sum(fraction) / trained.iterations == pytest.approx(totals["total/fraction"], rel=1e-9)
        assert totals["total/compression_ratio"] == pytest.approx(4 * everything / sum(wire), rel=1e-12)
        accuracy = 100 * totals["eval/accuracy"]
        per_gb = totals["total/accuracy_per_gb"]
        assert per_gb == pytest.approx(accuracy / totals["total/paper_gb"], rel=1e-12)


COLUMNS = [
    *("run", "accuracy %", "paper MB", "wire MB", "sent %", "times smaller", "than 16 bits", "ratio %/GB"),
    "time s",
]


def table(text: str) -> dict[str, list[float]]:
    """The table's rows by the run's name: accuracy, MB, share and ratios, without the time."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0] == COLUMNS
    return {row[0]: [float(re.sub("[x,]", "", cell)) for cell in row[1:-1]] for row in cells[2:]}


@pytest.mark.long
def test_the_readmes_table_is_that_of_its_command(trained):
    _, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- quickstart: begin -->")
    told = table(rest.partition("<!-- quickstart: end -->")[0])
    result = table((trained.figures / "table.md").read_text(encoding="utf-8"))
    assert list(told) == ["none", *BITS]
    assert list(result) == [*told, "async", "sharded"]
    for name in told:
        accuracy, *others = result[name]
        assert accuracy == pytest.approx(told[name][0], abs=POINTS), name
        assert others == pytest.approx(told[name][1:], rel=SHARE), name


def test_the_artifacts_hold_the_spec_the_timeline_and_the_figures(trained):
    client, figures = trained.client, ("fraction_per_iteration.png", "accuracy_against_mb.png", "table.csv")
    for name, run in {**trained.runs, **trained.links}.items():
        artifacts = [f for place in (None, "figures") for f in client.list_artifacts(run.info.run_id, place)]
        files = {"spec.yaml", "timeline.json", "figures/timeline.png"}
        files |= {f"figures/{figure}" for figure in figures if name in trained.runs}
        assert files <= {artifact.path for artifact in artifacts}, name
    spec, timeline = (
        Path(client.download_artifacts(trained.runs["wgt"].info.run_id, name)).read_text()
        for name in ("spec.yaml", "timeline.json")
    )
    assert yaml.safe_load(spec)["compressor"]["kind"] == "wgt"
    assert len(Timeline.from_json(timeline).workers) == WORKERS
    assert (trained.figures / "accuracy_against_mb.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
