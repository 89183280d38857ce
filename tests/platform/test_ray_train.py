"""Ray Train's trainer as far as it is changed, what it says of workers that failed, and what a cluster says
that does not take us; test_preflight has one that wants a token."""

import inspect
import json
import sys
from types import SimpleNamespace

import pytest
import ray
from ray.train import FailureConfig
from ray.train.v2.api.exceptions import WorkerGroupError
from waiting import said_by

from taugrad.compressors.errors import CorruptMessage, NonFiniteGradient, PeerLost
from taugrad.platform.launching.driver import ray_internals
from taugrad.platform.launching.driver.cluster import ray_cluster
from taugrad.platform.launching.driver.failure import run_failed
from taugrad.platform.spec import SpecError
from taugrad.platform.training.manifest import CheckpointError
from taugrad.platform.user_code import UserCodeError, UserCodeRaised


def test_the_private_names_that_are_used_are_in_this_version_of_ray():
    """What a new version lacks is listed; `ray_internals` was tried with the one that it names."""
    trainer, group = ray_internals.DataParallelTrainer, ray_internals.WorkerGroup
    elastic, fixed = ray_internals.ElasticScalingPolicy, ray_internals.FixedScalingPolicy
    takes = [
        (ray_internals.services, "start_ray_process", {"command"}),
        (ray_internals.utils, "get_dashboard_dependency_error", set()),
        (ray_internals.parameter, "RayParams", {"no_monitor", "include_log_monitor"}),
        (ray_internals.node.Node, "start_api_server", {"self"}),
        (ray_internals.JobSubmissionClient, "_do_request", {"self", "method", "endpoint", "kwargs"}),
        (trainer, "_register_sigint_handler", {"self", "controller"}),
        (trainer, "_create_default_callbacks", {"self"}),
        (trainer, "_initialize_and_run_controller", {"self"}),
        (ray_internals.DefaultFailurePolicy, "make_decision", {"training_failed_error"}),
        (ray_internals.TrainController, "run", {"self"}),
        (ray_internals.TrainController, "get_result", {"self"}),
        (group, "_get_worker_runtime_env", {"custom_runtime_env"}),
        *((policy, "after_controller_start", {"self", "train_run_context"}) for policy in (elastic, fixed)),
        *((policy, "_maybe_send_resource_request", {"self"}) for policy in (elastic, fixed)),
        (elastic, "_get_reserved_resources", {"self"}),
    ]
    lacking = [
        f"{place.__name__}.{name}: {names}"
        for place, name, names in takes
        if not hasattr(place, name) or not names <= inspect.signature(getattr(place, name)).parameters.keys()
    ]
    assert lacking == []
    assert hasattr(ray_internals.TrainController, "worker_group_cls")
    assert ray.__version__.startswith(ray_internals.TRIED_WITH)


CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:16733"
SILENT = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv"


@pytest.mark.parametrize("lost", [PeerLost(2, "is gone"), RuntimeError(CLOSED), RuntimeError(SILENT)])
def test_a_run_failed_by_the_error_of_the_worker_that_the_others_lost(lost):
    """Whatever they were at when they lost it: rounds, or a collective of torch."""
    failure = Exception()
    failure.worker_failures = {0: lost, 1: lost, 2: CorruptMessage("it is short")}
    assert str(run_failed(failure)) == "worker 2: CorruptMessage: it is short"
    del failure.worker_failures[2]
    assert str(run_failed(failure)).startswith("worker 0: ")


def test_a_run_goes_on_from_its_checkpoint_where_that_helps_and_says_why():
    notices = []
    job = SimpleNamespace(status=SimpleNamespace(notify=SimpleNamespace(remote=notices.append)))
    policy = ray_internals._Restarts(FailureConfig(max_failures=1), job)

    def decided(error: Exception) -> str:
        lost = {rank: PeerLost(1, "is gone") for rank in (0, 2)}
        return policy.make_decision(WorkerGroupError("", lost | {1: error})).name

    own_code = UserCodeError("mine:net", "no"), UserCodeRaised("no")
    for recurring in NonFiniteGradient("fc.weight", 1), CheckpointError("of other examples"), *own_code:
        assert decided(recurring) == "RAISE"
    assert notices == []
    assert [decided(OSError("disk full")) for _ in range(2)] == ["RETRY", "RAISE"]
    assert notices == ["worker 1: OSError: disk full: going on from the last checkpoint"]


NO_TOKEN = """Failed to connect to GCS. Last connection error: Traceback (most recent call last):
  File "ray/_private/node.py", line 996, in _init_gcs_client
    client = GcsClient(
             ^^^^^^^^^^
ray.exceptions.AuthenticationError: no token.
"""
OTHER_VERSION = """Version mismatch: The cluster was started with:
    Ray: 2.50.0
This process was started with:
    Ray: 2.60.0
"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (NO_TOKEN, "Last connection error: ray.exceptions.AuthenticationError: no token."),
        (OTHER_VERSION, "started with: Ray: 2.50.0 This process was started with: Ray: 2.60.0"),
    ],
)
def test_rays_error_becomes_one_line(raised, said, monkeypatch):
    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect") from RuntimeError(raised)

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(SpecError) as refused, ray_cluster():
        pass
    assert (refused.value.source, len(refused.value.problems)) == ("RAY_ADDRESS", 1)
    assert refused.value.problems[0].startswith("10.0.0.1:6379: ")
    assert refused.value.problems[0].endswith(said)


START = """
import json, os, time
from pathlib import Path
import psutil
from ray.train import RunConfig, ScalingConfig
from taugrad.platform.launching.driver.cluster import ray_cluster
from taugrad.platform.launching.driver.ray_internals import trainer_for

def lines():
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            found[process.pid] = " ".join(process.cmdline())
        except psutil.Error:
            pass
    return found

def train(config):
    Path(config["folder"], str(os.getpid())).touch()

with ray_cluster(workers=2):
    while len(ahead := [pid for pid, line in lines().items() if line.startswith("ray::IDLE")]) < 5:
        time.sleep(0.2)
    started, folder = list(lines().values()), os.getcwd()
    Path("workers").mkdir()
    trainer_for(alone=True)(
        train,
        train_loop_config={"folder": f"{folder}/workers"},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(name="run", storage_path=folder),
    ).fit()
    print(json.dumps([started, ahead, [int(name) for name in os.listdir("workers")]]))
"""


@pytest.mark.ray
def test_a_run_takes_processes_that_were_started_ahead(own_folder):
    """All together with Ray, which starts nothing that no run needs."""
    said = said_by([sys.executable, "-c", START])
    started, ahead, workers = json.loads(said.splitlines()[-1])
    assert len(workers) == 2
    assert set(workers) <= set(ahead)
    needless = ("dashboard.py", "monitor.py")  # log_monitor.py, too
    assert [line for line in started if any(name in line for name in needless)] == []
