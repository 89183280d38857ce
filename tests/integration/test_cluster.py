"""A cluster of two machines, as network namespaces that the test makes and removes.

Each has one CPU and sees the other only over the link between them: what rests on a machine's own loopback,
or on its folders of Ray, does not work here.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from benchmarks.network import Link, NetworkError, uniform, why_not
from benchmarks.platform.faults.machines import Machines
from mlflow.tracking import MlflowClient
from recorder import trained
from specs import DIGITS, write_digits
from stored import named_runs
from waiting import TIMEOUT_S, until

from taugrad.platform.tracking import names

pytestmark = pytest.mark.ray

RUN = {"experiment": "cluster", "compressor": "strom(tau=0.02) | golomb_rice", "workers": {"count": 2}}
SIMULATED = {"sync": {"mode": "simulated"}}


@pytest.fixture(scope="module")
def machines(tmp_path_factory, new_store, request):
    if reason := why_not(uniform(2, Link.parse("1gbit"))):
        pytest.skip(reason)
    try:
        made = Machines(tmp_path_factory.mktemp("cluster"), dashboard=request.config.getoption("all"))
    except NetworkError as error:
        pytest.skip(f"no network namespaces with a link can be made here: {error}")
    made.environment |= {
        "RAY_ADDRESS": made.address,
        "MLFLOW_TRACKING_URI": new_store(made.environment["HOME"]),
    }
    yield made
    made.close()


@pytest.fixture
def folder(machines):
    """Where commands are given."""
    return Path(machines.environment["HOME"])


@pytest.fixture
def taugrad(machines, folder, command):
    """Runs a command on the first machine, which must end well; what it says."""

    def run(*arguments: str) -> str:
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "check": False}
        done = machines.head.run([*command, *arguments], cwd=folder, env=machines.environment, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    return run


@pytest.fixture
def client(machines):
    return MlflowClient(machines.environment["MLFLOW_TRACKING_URI"])


def test_workers_of_two_machines_come_to_the_bits_of_simulated_ones(taugrad, folder, client, alone):
    taugrad("train", write_digits(folder, "real", **RUN))
    real = named_runs(client, "cluster")["real"]
    _, simulated = trained(DIGITS | RUN | SIMULATED)
    for metric in (names.EVAL_ACCURACY, names.EVAL_LOSS):
        assert real.data.metrics[metric] == simulated.evaluations[-1][1][metric] > 0, metric
    sent = names.COMM_WIRE_MB_TOTAL
    assert real.data.metrics[sent] == simulated.values(sent)[-1] > 0


@pytest.mark.long
def test_a_run_goes_on_with_the_workers_that_are_left(taugrad, machines, folder, client):
    """The last test: one of the machines is gone after it."""
    elastic = {"workers": {"count": 2, "min_count": 1, "max_restarts": 1, "on_resize": "merge"}}
    elastic |= {"training": {"epochs": 30, "batch_size": 64}, "storage": "elastic"}
    elastic |= {"checkpoint": {"interval": 40, "keep": 100}}
    spec = write_digits(folder, "elastic", **RUN | elastic)
    with ThreadPoolExecutor(1) as beside:
        training = beside.submit(taugrad, "train", spec)
        until(lambda: training.done() or any(folder.glob("elastic/*/iteration_*/manifest.json")))
        machines.kill_second()
        said = training.result()
    assert "the cluster has room for 1 of 2 workers: going on with these" in said
    run = named_runs(client, "cluster")["elastic"]
    sent = client.get_metric_history(run.info.run_id, names.COMM_FRACTION)
    steps = [point.step for point in sent]
    assert steps == list(range(1, len(steps) + 1))
    assert run.data.metrics[names.EVAL_ACCURACY] > 0.9
    files = {len(list(path.glob("worker_*.pt"))) for path in folder.glob("elastic/*/iteration_*")}
    assert files == {1, 2}  # a file for each worker, before and after
