"""A cluster of two machines, as network namespaces that the test makes and removes.

Each has one CPU and sees the other only over the link between them: what rests on a machine's own loopback,
or on its folders of Ray, does not work here.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from waiting import until

from taugrad.platform.tracking import names

pytestmark = pytest.mark.ray

HEAD, NODE = "10.213.77.1", "10.213.77.2"
ADDRESS = f"{HEAD}:6379"
TIMEOUT_S = 480
Finished = subprocess.CompletedProcess[str]
RunOn = Callable[..., Finished]
RUN = """
experiment: cluster
name: {name}
data: {{kind: digits}}
model: {{kind: mlp, widths: [16]}}
training: {{epochs: 2, batch_size: 64}}
compressor: "strom(tau=0.02) | golomb_rice"
workers: {{count: 2}}
sync: {sync}
"""
TRAINING = """
import pathlib, time
import ray.util

def training(spec):
    pathlib.Path("seen", ray.util.get_node_ip_address()).touch()
    time.sleep(3)  # long enough for the other machine to get a trial too
    yield 0.5, 1000
"""
START = "ray start --disable-usage-stats --num-cpus=1 --object-store-memory=134217728 --node-ip-address="
# The second machine has folders of Ray and shared memory of its own: `ip netns exec` gives it its own mounts.
PRIVATE = "mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray && mount -t tmpfs shm /dev/shm && "


def ip(arguments: str) -> str:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {arguments}: {done.stderr.strip()}")
    return done.stdout


def runs(variables: dict[str, str], name: str = "") -> list[Run]:
    client = MlflowClient(variables["MLFLOW_TRACKING_URI"])
    experiment = client.get_experiment_by_name("cluster")
    if experiment is None:
        return []
    found = client.search_runs([experiment.experiment_id])
    return [run for run in found if name in ("", run.info.run_name)]


def kill_all(namespace: str) -> None:
    for pid in ip(f"netns pids {namespace}").split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def remove(namespace: str) -> None:
    kill_all(namespace)
    ip(f"netns del {namespace}")


@pytest.fixture(scope="module")
def machines():
    """Two namespaces with a link between them."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root, and ip (Debian's iproute2), to make network namespaces")
    head, node = (f"taugrad-{os.getpid()}-{name}" for name in ("head", "node"))
    with ExitStack() as stack:
        try:
            for namespace in (head, node):
                ip(f"netns add {namespace}")
                stack.callback(remove, namespace)
            ip(f"link add tg0 netns {head} type veth peer name tg0 netns {node}")
        except OSError as error:
            pytest.skip(f"no network namespaces with a link can be made here: {error}")
        for namespace, address in ((head, HEAD), (node, NODE)):
            ip(f"-n {namespace} addr add {address}/30 dev tg0")
            ip(f"-n {namespace} link set tg0 up")
            ip(f"-n {namespace} link set lo up")
        yield head, node


@pytest.fixture(scope="module")
def variables(tmp_path_factory, environment):
    """What a user of the cluster sets, but for the token."""
    folder = tmp_path_factory.mktemp("cluster")
    return environment | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "HOME": str(folder),  # where Ray looks for a token
        "RAY_ADDRESS": ADDRESS,
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }


@pytest.fixture(scope="module")
def cluster(machines, variables, request):
    """Ray on both; runs commands on the first."""
    searches = request.config.getoption("all")
    dashboard = f"--include-dashboard={str(searches).lower()}"  # searches need it
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}

    def run(*command: str, on: str = machines[0], **changed: str) -> Finished:
        return subprocess.run(
            ["ip", "netns", "exec", on, *command],
            cwd=variables["HOME"],
            env=variables | token | changed,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    for machine, how in (
        (machines[0], f"{START}{HEAD} --head --port=6379 --dashboard-host={HEAD} {dashboard}"),
        (machines[1], f"{PRIVATE}{START}{NODE} --address={ADDRESS}"),
    ):
        log = Path(variables["HOME"]) / f"{machine}.txt"  # a pipe would stay open as long as Ray runs
        started = run("sh", "-c", f"({how}) > {log} 2>&1", on=machine, RAY_ADDRESS="")
        assert started.returncode == 0, log.read_text() + started.stderr
    return run


@pytest.fixture
def taugrad(cluster, command):
    def run(*arguments: str, **changed: str) -> Finished:
        return cluster(*command, *arguments, **changed)

    return run


def test_workers_of_two_machines_come_to_the_bits_of_simulated_ones(taugrad, variables):
    for name, sync in (("real", "{}"), ("simulated", "{mode: simulated}")):
        Path(variables["HOME"], f"{name}.yaml").write_text(RUN.format(name=name, sync=sync))
    answer = taugrad("train", "real.yaml", "simulated.yaml")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (real,), (simulated,) = runs(variables, "real"), runs(variables, "simulated")
    for metric in (names.EVAL_ACCURACY, names.EVAL_LOSS, names.COMM_WIRE_MB_TOTAL):
        assert real.data.metrics[metric] == simulated.data.metrics[metric] > 0, metric


@pytest.mark.long
def test_trials_of_a_search_run_on_both_machines(taugrad, variables):
    folder = Path(variables["HOME"])
    (folder / "seen").mkdir()
    (folder / "own.py").write_text(TRAINING)
    text = RUN.format(name="searched", sync="{mode: simulated}").replace("0.02", "{'log': [1e-2, 1]}")
    (folder / "searched.yaml").write_text(
        text + "search: {trials: 6, baseline: false, evaluate: 'own:training'}"
    )
    answer = taugrad("search", "searched.yaml", "--allow-custom")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    trials = [run for run in runs(variables) if "taugrad.trial" in run.data.tags]
    assert [run.info.status for run in trials] == ["FINISHED"] * 6
    assert {each.name for each in (folder / "seen").iterdir()} == {HEAD, NODE}


@pytest.mark.long
def test_a_run_goes_on_with_the_workers_that_are_left(taugrad, machines, variables):
    """The last test: one of the machines is gone after it."""
    folder = Path(variables["HOME"])
    text = RUN.format(name="elastic", sync="{}").replace("epochs: 2", "epochs: 30")
    few = "{count: 2, min_count: 1, max_restarts: 1, on_resize: merge}"
    (folder / "elastic.yaml").write_text(
        text.replace("{count: 2}", few) + "checkpoint: {interval: 40, keep: 100}\nstorage: elastic\n"
    )
    with ThreadPoolExecutor(1) as beside:
        training = beside.submit(taugrad, "train", "elastic.yaml")
        until(lambda: training.done() or any(folder.glob("elastic/*/iteration_*/manifest.json")))
        kill_all(machines[1])
        answer = training.result()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "the cluster has room for 1 of 2 workers: going on with these" in answer.stdout
    (run,) = runs(variables, "elastic")
    client = MlflowClient(variables["MLFLOW_TRACKING_URI"])
    sent = client.get_metric_history(run.info.run_id, names.COMM_FRACTION)
    steps = [each.step for each in sent]
    assert steps == list(range(1, len(steps) + 1))
    assert run.data.metrics[names.EVAL_ACCURACY] > 0.9
    files = {len(list(each.glob("worker_*.pt"))) for each in folder.glob("elastic/*/iteration_*")}
    assert files == {1, 2}  # a file for each worker, before and after
